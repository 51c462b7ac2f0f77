"""A patch series: which files, in which order, and which of them need a compiler.

``patches/<name>/series`` names one patch a line; blank lines and ``#`` comments are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen import files
from envgen.errors import Place, Problem, ProjectError
from envgen.patches.header import Header, in_range, read_header, version_of_ref
from envgen.patches.inspect import LARGEST, read_patch, touched
from envgen.profile.model import Origin

UNDERWAY = ".envgen-refresh.json"  # beside the series while `patch refresh` rewrites it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Patch:
    """One patch: its file relative to the project, its bytes, and the files of the source that it touches."""

    name: str
    path: str
    content: bytes
    touches: tuple[str, ...]
    header: Header = Header()

    def is_python_only(self, package: str) -> bool:
        """True when it touches nothing but Python files of the installed package: no compiler has to see it."""
        return all(file.startswith(f"{package}/") and file.endswith(".py") for file in self.touches)


@dataclass(frozen=True)
class Series:
    """The patches of one source in order."""

    folder: str
    patches: tuple[Patch, ...]

    def for_version(self, version: str) -> Series:
        """Without the patches that are not for ``version``. An unknown version ("") keeps them all."""
        return Series(self.folder, tuple(p for p in self.patches if in_range(p.header.applies_to, version)))

    def split(self, package: str) -> tuple[tuple[Patch, ...], tuple[Patch, ...]]:
        """(built with the wheel, applied to what is installed), each in series order.

        A Python-only patch that shares a file with a patch of the first kind is built too, so the two groups touch
        different files and applying one after the other equals the series.
        """
        late = {patch.name for patch in self.patches if patch.is_python_only(package)}
        while True:
            built_files = {file for patch in self.patches if patch.name not in late for file in patch.touches}
            tied = {p.name for p in self.patches if p.name in late and built_files.intersection(p.touches)}
            if not tied:
                break
            late -= tied
        return (
            tuple(patch for patch in self.patches if patch.name not in late),
            tuple(patch for patch in self.patches if patch.name in late),
        )


def version_of(origin: Origin) -> str:
    """The version of a source where its origin says so: an exact release, or a tag named like one."""
    pin = origin.pypi or origin.wheel
    return pin.version if pin is not None else version_of_ref(origin.ref or "")


def make_patch(name: str, path: str, content: bytes, place: Place) -> Patch:
    """A patch from its bytes. Raises ``ProjectError`` when it is not a patch, or does what no patch may do."""
    found = read_patch(content, path, place)
    return Patch(name, path, content, touched(found), read_header(content, path))


def load_series(root: Path, name: str) -> Series:
    """Read ``patches/<name>/series`` and its patches; empty where there is none of both.

    Raises ``ProjectError`` with everything that is wrong with it.
    """
    folder = f"patches/{name}"
    series_path = f"{folder}/series"
    if (root / folder / UNDERWAY).exists():
        hint = "`envgen patch list` finishes it"
        raise ProjectError([Problem("`envgen patch refresh` was interrupted", Place(series_path), hint)])
    is_file = (root / folder).is_file()
    if not is_file and not (root / series_path).exists() and not any((root / folder).glob("*.patch")):
        return Series(folder, ())  # none yet: `envgen patch new` begins it
    text = _read(root, series_path, Place(series_path)).decode("utf-8", "replace")
    problems: list[Problem] = []
    patches: list[Patch] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        place = Place(series_path, number, 1, text=line.rstrip("\r"))
        if entry in seen:
            problems.append(Problem(f"{entry} is listed twice (first in line {seen[entry]})", place))
            continue
        seen[entry] = number
        try:
            if not _NAME.fullmatch(entry):
                raise _bad_name(entry, place)
            path = f"{folder}/{entry}"
            patches.append(make_patch(entry, path, _read(root, path, place), place))
        except ProjectError as error:
            problems += error.problems
    if problems:
        raise ProjectError(problems)
    return Series(folder, tuple(patches))


def _bad_name(entry: str, place: Place) -> ProjectError:
    if entry.startswith("/"):
        message, hint = f"{entry!r} is an absolute path", "name a file beside the series"
    elif ".." in entry.split("/"):
        message, hint = f"{entry!r} leaves the folder of the series", "name a file beside the series"
    else:
        message = f"{entry!r} is not the name of a patch"
        hint = "letters, digits and ._+- ; one name a line, without options such as -p1"
    return ProjectError([Problem(message, place, hint)])


def _read(root: Path, path: str, place: Place) -> bytes:
    """The bytes of a file of the project. A link that leads out of the project is refused, not followed."""
    file = root / path
    try:
        resolved = file.resolve(strict=True)
        if not resolved.is_relative_to(root.resolve()):
            raise ProjectError([Problem(f"{path} is a link that leaves the project", place, "copy the file here")])
        if not resolved.is_file():
            raise ProjectError([Problem(f"{path} is not a file", place)])
        if resolved.stat().st_size > LARGEST:
            size = f"{resolved.stat().st_size / (1 << 20):.0f} MiB"
            raise ProjectError([Problem(f"{path} is {size}; a patch may have {LARGEST >> 20} MiB", place)])
        return files.read(resolved)
    except FileNotFoundError:
        raise ProjectError([Problem(f"{path} does not exist", place, "correct the name, or remove the line")]) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise ProjectError([Problem(f"{path} cannot be read: {error}", place)]) from None


def folders(names: Sequence[str]) -> tuple[str, ...]:
    """The series folders for source names, sorted: what .dockerignore lets in."""
    return tuple(sorted(f"patches/{name}" for name in names))
