"""A patch series: which files, in which order, and which of them need a compiler.

``patches/<name>/series`` names one patch a line; blank lines and ``#`` comments are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envgen.errors import Place, Problem, ProjectError

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from envgen.profile.record import dataclass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Patch:
    """One patch: its file relative to the project, its bytes, and the files of the source that it touches."""

    name: str
    path: str
    content: bytes
    touches: tuple[str, ...]

    def is_python_only(self, package: str) -> bool:
        """True when it touches nothing but Python files of the installed package: no compiler has to see it."""
        return all(file.startswith(f"{package}/") and file.endswith(".py") for file in self.touches)


@dataclass(frozen=True)
class Series:
    """The patches of one source in order."""

    folder: str
    patches: tuple[Patch, ...]

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


def load_series(root: Path, name: str) -> Series:
    """Read ``patches/<name>/series`` and its patches. Raises ``ProjectError`` with everything that is wrong with it."""
    folder = f"patches/{name}"
    series_path = f"{folder}/series"
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
            content = _read(root, path, place)
            patches.append(Patch(entry, path, content, _touched(content, place)))
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
        return resolved.read_bytes()
    except FileNotFoundError:
        raise ProjectError([Problem(f"{path} does not exist", place)]) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise ProjectError([Problem(f"{path} cannot be read: {error}", place)]) from None


def _touched(content: bytes, place: Place) -> tuple[str, ...]:
    """The files that a patch touches, old and new names, without their a/ and b/."""
    # Imported here: most projects have no patches, and it costs more than the rest of a render.
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        found = PatchSet(content.decode("utf-8", "surrogateescape"))
    except UnidiffParseError as error:
        raise ProjectError([Problem(f"is not a unified diff: {error}", place)]) from None
    names = {
        name.split("/", 1)[-1] for file in found for name in (file.source_file, file.target_file) if name != "/dev/null"
    }
    if not names:
        raise ProjectError([Problem("changes no file", place, "remove it from the series")])
    bad = sorted(name for name in names if name.startswith("/") or {"..", ".git"}.intersection(name.split("/")))
    if bad:
        raise ProjectError([Problem(f"touches {bad[0]!r}, which no patch may touch", place)])
    return tuple(sorted(names))


def folders(names: Sequence[str]) -> tuple[str, ...]:
    """The series folders for source names, sorted: what .dockerignore lets in."""
    return tuple(sorted(f"patches/{name}" for name in names))
