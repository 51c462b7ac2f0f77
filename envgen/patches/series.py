"""A patch series: its files, their order and versions; reading, checking and changing it.

``patches/<name>/series`` names one patch per line; blank lines and ``#`` comments are skipped. A patch is a unified
diff below fields as in DEP-3; ``Applies-To`` is the range of its versions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envgen import files
from envgen.errors import Place, Problem, ProjectError, RefusedError, UsageError
from envgen.profile.model import Origin
from envgen.text import masked

_FIELD = re.compile(r"([A-Z][A-Za-z-]*):[ \t]*(.*)")
_DIFF = ("diff --git ", "--- ", "Index: ")
_LONGEST = 64 << 10
# v0.14.0, 0.6.18.post1: a tag that is the number of a release.
_RELEASE_TAG = re.compile(r"(?:refs/tags/)?v?([0-9]+(?:\.[0-9]+)+(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*)")


@dataclass(frozen=True)
class Header:
    """The fields in order; a value's lines are joined by newlines."""

    fields: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """The first field of that name; "" without one."""
        return next((value for key, value in self.fields if key.lower() == name.lower()), "")

    @property
    def title(self) -> str:
        """The first line of the description."""
        return self.get("Description").split("\n", 1)[0] or self.get("Subject")

    @property
    def applies_to(self) -> str:
        """The version range, such as ``>=0.13.0, <0.17``; empty: every version."""
        return " ".join(self.get("Applies-To").split())


def head_of(content: bytes) -> bytes:
    """The text above the diff, newline included."""
    end = 0
    for line in content[:_LONGEST].splitlines(keepends=True):
        if line.decode("utf-8", "replace").startswith(_DIFF):
            break
        end += len(line)
    return content[:end]


def without_head(content: bytes) -> bytes:
    """The diff alone."""
    return content[len(head_of(content)) :]


def read_header(content: bytes, file: str) -> Header:
    """Read a patch's fields. Raises ``ProjectError`` when ``Applies-To`` is not a version range."""
    fields: list[tuple[str, str]] = []
    for number, line in enumerate(head_of(content).decode("utf-8", "replace").splitlines(), 1):
        match = _FIELD.fullmatch(line)
        if match:
            fields.append((match[1], match[2].strip()))
            if match[1].lower() == "applies-to":
                try:
                    SpecifierSet(match[2])
                except InvalidSpecifier:
                    message = f"{match[2].strip()!r} is not a range of versions"
                    place = Place(file, number, 1, text=line)
                    raise _refusal(message, place, "as in: Applies-To: >=0.13.0, <0.17") from None
        elif fields and line.startswith((" ", "\t")):
            name, value = fields[-1]
            fields[-1] = (name, f"{value}\n{'' if line.strip() == '.' else line.strip()}")
    return Header(tuple(fields))


def in_range(applies_to: str, version: str) -> bool:
    """Whether a patch is for this version. An unknown version (a branch, a commit) counts as in range."""
    if not applies_to or not version:
        return True
    try:
        return SpecifierSet(applies_to).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def version_of_ref(ref: str) -> str:
    """The version in a git tag (``v0.14.0`` -> ``0.14.0``); "" for a branch or commit."""
    match = _RELEASE_TAG.fullmatch(ref)
    return match[1] if match else ""


LARGEST = 4 << 20
_MODES = ("100644", "100755")
_WITHOUT_HUNKS = ("new file mode ", "deleted file mode ", "old mode ", "rename ", "copy ")
_MODE_LINES = ("new file mode ", "deleted file mode ", "old mode ", "new mode ")
_NAMED = ("--- ", "+++ ", "diff --git ", "rename ", "copy ")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")


@dataclass
class Hunk:
    """``line``: the number of its @@ line. ``lines``: as in the patch, each with its mark."""

    line: int
    heading: str
    lines: list[str] = field(default_factory=list)


@dataclass
class FilePatch:
    """The changes of a patch to one file. ``info``: git's lines before the names."""

    source: str = ""
    target: str = ""
    info: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)


def read_patch(content: bytes, file: str, fallback: Place) -> list[FilePatch]:
    """Parse a patch. Raises ProjectError for what no patch may do. ``fallback``: its place in the series."""
    if len(content) > LARGEST:
        size = f"{len(content) / (1 << 20):.0f} MiB"
        raise _refusal(f"is {size}; a patch may have {LARGEST >> 20} MiB", Place(file), "use a fork instead")
    if not content.strip():
        raise _refusal("changes no file: it is empty", fallback, "remove it from the series")
    lines = _Lines(content.decode("utf-8", "surrogateescape").split("\n"), file)
    for number, line in enumerate(lines.all, 1):
        if line.rstrip("\r") == "GIT binary patch" or line.startswith("Binary files "):
            hint = "a binary patch can't be reviewed: fetch the file in the source's install.prepare instead"
            raise _refusal("changes a binary file", lines.place(number), hint)
    found = _parsed(lines)
    if not found:
        raise _refusal("changes no file", fallback, "remove it from the series")
    for changed in found:
        if not changed.hunks and not any(info.startswith(_WITHOUT_HUNKS) for info in changed.info):
            raise _refusal(f"changes nothing in {changed.target}", lines.find(changed.target, _NAMED))
        _check_info(changed, lines)
        for name in (changed.source, changed.target):
            _check_name(name, lines)
    return found


def touched(found: Sequence[FilePatch]) -> tuple[str, ...]:
    """The files that a patch touches, old and new names, without their a/ and b/."""
    names = {name for file in found for name in (file.source, file.target) if name != "/dev/null"}
    return tuple(sorted({strip(name) for name in names}))


def strip(name: str) -> str:
    """A name without its a/ or b/."""
    return name.split("/", 1)[-1]


@dataclass(frozen=True)
class _Lines:
    """The lines of a patch, and places in it."""

    all: list[str]
    file: str

    def place(self, number: int) -> Place:
        text = self.all[number - 1] if 0 < number <= len(self.all) else ""
        return Place(self.file, number, 1, text=masked(text[:160]))

    def find(self, part: str, starts: tuple[str, ...]) -> Place:
        """The first line that contains ``part`` and begins with one of ``starts``; else line 1."""
        numbers = (n for n, line in enumerate(self.all, 1) if line.startswith(starts) and part in line)
        return self.place(next(numbers, 1))

    def no_diff(self, number: int, why: str, hint: str = "") -> ProjectError:
        return _refusal(f"is not a unified diff: {why}", self.place(number), hint)


def _parsed(lines: _Lines) -> list[FilePatch]:
    """The files of a patch. Text around them (a mail's head, its signature) is skipped."""
    found: list[FilePatch] = []
    in_info = False
    at = 0
    while at < len(lines.all):
        line, number = lines.all[at], at + 1
        at += 1
        if line.startswith("diff --git "):
            names = line.rstrip("\r").split(" ")
            found.append(FilePatch(names[2] if len(names) > 3 else "", names[-1], [line]))
            in_info = True
        elif line.startswith("--- ") and at < len(lines.all) and lines.all[at].startswith("+++ "):
            if not in_info:
                found.append(FilePatch())
            found[-1].source, found[-1].target = (name[4:].split("\t")[0] for name in (line, lines.all[at]))
            in_info = False
            at += 1
        elif line.startswith("@@ ") and (found or _HUNK.fullmatch(line.rstrip("\r"))):
            if not found or in_info:
                raise lines.no_diff(number, "this hunk belongs to no file")
            hunk, at = _hunk(lines, number)
            found[-1].hunks.append(hunk)
        elif in_info:
            found[-1].info.append(line)
        elif found and line.startswith(("+", "-")) and line != "-- ":
            # It looks like a change, and git would ignore it.
            raise lines.no_diff(number, "this line is in no hunk", "the counts of an @@ line are wrong")
    for changed in found:
        for info in changed.info:
            if info.startswith(("rename from ", "copy from ")):
                changed.source = "a/" + info.split(" ", 2)[2]
            elif info.startswith(("rename to ", "copy to ")):
                changed.target = "b/" + info.split(" ", 2)[2]
    return found


def _hunk(lines: _Lines, number: int) -> tuple[Hunk, int]:
    """The hunk whose @@ line is ``number``, and the number of lines read so far."""
    match = _HUNK.fullmatch(lines.all[number - 1].rstrip("\r"))
    if not match:
        raise lines.no_diff(number, "an @@ line without line numbers")
    old, new = int(match[2] or 1), int(match[4] or 1)
    hunk = Hunk(number, f"@@ -{match[1]},{old} +{match[3]},{new} @@ {match[5].strip()}".strip())
    at = number
    while (old > 0 or new > 0) or (at < len(lines.all) and lines.all[at].startswith("\\")):
        line = lines.all[at] if at < len(lines.all) else None
        mark = line[:1].rstrip("\r") or " " if line is not None else ""
        old, new = old - (mark in (" ", "-")), new - (mark in (" ", "+"))
        if line is None or mark not in (" ", "-", "+", "\\") or old < 0 or new < 0:
            raise lines.no_diff(at + 1, "the hunk is shorter than its @@ line says", f"it begins on line {number}")
        hunk.lines.append(line)
        at += 1
    return hunk, at


def _check_info(changed: FilePatch, lines: _Lines) -> None:
    for line in changed.info:
        mode = ""
        if line.startswith(_MODE_LINES) or (line.startswith("index ") and line.count(" ") == 2):
            mode = line.rsplit(" ", 1)[1]
        if mode and mode not in _MODES:
            kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, f"a file of mode {mode!r}")
            raise _refusal(f"touches {kind}, which no patch may touch", lines.find(line, (line[:6],)))


def _check_name(name: str, lines: _Lines) -> None:
    if name == "/dev/null":
        return
    place = lines.find(name if name.startswith(("/", '"')) else strip(name), _NAMED)
    if name.endswith("\r") or lines.all[place.line - 1].endswith("\r"):
        raise _refusal("has Windows line endings in its headers", place, "save it with LF (dos2unix)")
    if name.startswith('"'):
        raise _refusal(f"touches {name[:80]}, a name with unusual characters", place)
    if name.startswith("/"):
        raise _refusal(f"touches {name!r}, an absolute path, which no patch may touch", place)
    side, slash, rest = name.partition("/")
    parts = rest.split("/")
    if not slash or side not in ("a", "b", "i", "w", "c", "o"):
        raise _refusal(f"names {name!r} without the a/ or b/ of git", place, "use `git diff` or `envgen patch new`")
    if rest.startswith("/") or {"", ".", ".."}.intersection(parts):
        raise _refusal(f"touches {rest!r}, which no patch may touch", place, "name a file of the source")
    if any(part.lower().rstrip(". ") in (".git", "git~1") for part in parts):
        raise _refusal(f"touches {rest!r}, git's own data, which no patch may touch", place)


def _refusal(message: str, place: Place, hint: str = "") -> ProjectError:
    return ProjectError([Problem(message, place, hint)])


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
        """True when it touches only Python files of the installed package, so that nothing is compiled again."""
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
    """The version of a source, where its origin names one: an exact release, or a tag named like one."""
    pin = origin.pypi or origin.wheel
    return pin.version if pin is not None else version_of_ref(origin.ref or "")


def make_patch(name: str, path: str, content: bytes, place: Place) -> Patch:
    """A patch from its bytes. Raises ``ProjectError`` for an invalid patch."""
    found = read_patch(content, path, place)
    return Patch(name, path, content, touched(found), read_header(content, path))


def load_series(root: Path, name: str) -> Series:
    """Read ``patches/<name>/series`` and its patches; an empty series where there are neither.

    Raises ``ProjectError`` with all problems.
    """
    folder = f"patches/{name}"
    series_path = f"{folder}/series"
    is_file = (root / folder).is_file()
    if not is_file and not (root / series_path).exists() and not any((root / folder).glob("*.patch")):
        return Series(folder, ())  # `envgen patch new` begins it
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
            problems.append(Problem(f"{entry} is listed twice (first on line {seen[entry]})", place))
            continue
        seen[entry] = number
        try:
            if not _NAME.fullmatch(entry):
                leaves = entry.startswith("/") or ".." in entry.split("/")
                what = "leaves the folder of the series" if leaves else "is not the name of a patch"
                hint = "write one name per line (letters, digits and ._+-), without options such as -p1"
                raise _refusal(f"{entry!r} {what}", place, hint)
            path = f"{folder}/{entry}"
            patches.append(make_patch(entry, path, _read(root, path, place), place))
        except ProjectError as error:
            problems += error.problems
    if problems:
        raise ProjectError(problems)
    return Series(folder, tuple(patches))


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


_TITLE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def series_file(root: Path, folder: str) -> Path:
    """The path of a series. RefusedError for a folder outside of the project."""
    path = (root / folder).resolve()
    if not path.is_relative_to(root.resolve()):
        raise RefusedError(f"{folder} leads out of the project")
    return root / folder / "series"


def listed(file: Path) -> str:
    """The text of a series; empty where there is none yet."""
    return files.read(file).decode() if file.exists() else ""


def entries(text: str) -> list[str]:
    """The names in a series, in order."""
    return [entry for line in text.splitlines() if (entry := line.split("#", 1)[0].strip())]


def next_name(names: list[str], title: str) -> str:
    """``0004-title.patch``, with the next free number."""
    if not _TITLE.fullmatch(title):
        hint = "write small letters, digits and single dashes, as in: faster-moe"
        raise UsageError(f"{title!r} is not a name for a patch", hint=hint)
    numbers = [int(name[:4]) for name in names if name[:4].isdigit()]
    return f"{max(numbers, default=0) + 1:04d}-{title}.patch"


def add(root: Path, folder: str, title: str, head: str, diff: bytes) -> str:
    """Write a new patch, and append it to the series. Returns its path."""
    file = series_file(root, folder)
    text = listed(file)
    content = head.encode() + b"\n" + diff
    there = sorted(path.name for path in file.parent.glob("*.patch"))
    for other in entries(text):
        if (file.parent / other).is_file() and without_head(files.read(file.parent / other)) == diff:
            raise RefusedError(f"{folder}/{other} already has this change", hint="edit the checkout first")
    name = next_name([*entries(text), *there], title)
    for other in there:  # written by a run that was killed before it wrote the series
        if other[4:] == name[4:] and other not in entries(text) and files.read(file.parent / other) == content:
            name = other
    path = f"{folder}/{name}"
    make_patch(name, path, content, Place(path))  # raises before anything is written
    files.write(root / path, content, within=root)
    files.write(file, (text + ("\n" if text and not text.endswith("\n") else "") + f"{name}\n").encode())
    return path


def choose(names: list[str], wanted: str) -> str:
    """A patch by its name, with or without ``.patch``, or by its number."""
    number = f"{int(wanted):04d}" if wanted.isascii() and wanted.isdigit() and len(wanted) <= 4 else wanted
    matching = [name for name in names if wanted in (name, name.removesuffix(".patch")) or name[:4] == number]
    if len(matching) != 1:
        hint = f"the series has {', '.join(names) or 'none'}"
        raise UsageError(
            f"no patch {wanted!r} in the series" if not matching else f"{wanted!r} names several", hint=hint
        )
    return matching[0]


def replace_diff(root: Path, folder: str, name: str, diff: bytes) -> str:
    """Replace the diff of a patch, and keep its header. Returns its path."""
    path = f"{folder}/{name}"
    content = head_of(files.read(root / path)) + diff
    make_patch(name, path, content, Place(path))  # raises before anything is written
    files.write(root / path, content, within=root)
    return path
