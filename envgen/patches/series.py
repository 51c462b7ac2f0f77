"""A patch series: its files, their order and versions; reading, checking and changing it.

``patches/<name>/series`` names one patch per line; blank lines and ``#`` comments are skipped. A
patch is a unified diff below fields as in DEP-3; ``Applies-To`` is the range of its versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envgen import files
from envgen.errors import Place, Problem, ProjectError, RefusedError, UsageError
from envgen.text import masked, whole_number

_APPLIES_TO = re.compile(r"^Applies-To:[ \t]*(.*(?:\n[ \t].*)*)", re.M | re.I)
_DIFF = ("diff --git ", "--- ", "Index: ")
_LONGEST = 64 << 10


def head_of(content: bytes) -> bytes:
    """The text above the diff, newline included."""
    end = 0
    for line in content[:_LONGEST].splitlines(keepends=True):
        if line.decode("utf-8", "replace").startswith(_DIFF):
            break
        end += len(line)
    return content[:end]


def applies_to_of(content: bytes, file: str) -> str:
    """The version range of a patch, such as ``>=0.13.0, <0.17``; empty: every version. Raises
    ``ProjectError`` when it is none.
    """
    head = head_of(content).decode("utf-8", "replace")
    match = _APPLIES_TO.search(head)
    if match is None:
        return ""
    versions = " ".join(match[1].split())
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        number = head[: match.start()].count("\n") + 1
        place = Place(file, number, 1, text=match[0].partition("\n")[0])
        message = f"{versions!r} is not a range of versions"
        raise _refusal(message, place, "as in: Applies-To: >=0.13.0, <0.17") from None
    return versions


def in_range(applies_to: str, version: str) -> bool:
    """Whether a patch is for this version. An unknown version (a branch, a commit) counts as in
    range.
    """
    if not applies_to or not version:
        return True
    try:
        return SpecifierSet(applies_to).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


LARGEST = 4 << 20  # bytes of a patch
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADER = re.compile(
    r"(?:rename|copy) from (?P<source>.+)|(?:rename|copy) to (?P<target>.+)"
    r"|(?:(?:new file|deleted file|old|new) mode|index \S+) (?P<mode>\d+)"
)


@dataclass
class FileDiff:
    """A file that a patch changes: its old and new name with a/ and b/, and the line that names it."""

    source: str
    target: str
    line: int
    in_header: bool = True  # no hunk of it has come yet


def read_patch(content: bytes, file: str) -> list[FileDiff]:
    """The files that a patch touches. `git apply` judges everything else.

    Raises ProjectError if it changes anything but plain files of the source, or has a changed line
    after the end of a hunk, which git would ignore.
    """
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    diffs: list[FileDiff] = []
    old = new = 0  # lines that the hunk still has
    for number, line in enumerate(lines, 1):
        place = Place(file, number, 1, text=masked(line[:160]))
        in_header = bool(diffs) and diffs[-1].in_header
        if old > 0 or new > 0:
            old = old - (line[:1] not in ("+", "\\"))
            new = new - (line[:1] not in ("-", "\\"))
        elif line.startswith("diff --git "):
            names = line.split(" ")[2:]
            diffs.append(FileDiff(names[0], names[-1], number))
        elif line.startswith("--- ") and number < len(lines) and lines[number].startswith("+++ "):
            if not in_header:
                diffs.append(FileDiff("", "", number))
            diffs[-1].source, diffs[-1].target = (
                name[4:].split("\t")[0] for name in (line, lines[number])
            )
        elif match := _HUNK.match(line):
            if not diffs:
                raise _refusal("is not a unified diff: this hunk belongs to no file", place)
            old, new = (int(count or 1) for count in match.groups())
            diffs[-1].in_header = False
        elif in_header and (match := _HEADER.match(line)):
            if (match["mode"] or "100644") not in ("100644", "100755"):
                raise _refusal(
                    f"touches a file of mode {match['mode']}; a patch may change plain files only",
                    place,
                )
            diffs[-1].source = f"a/{match['source']}" if match["source"] else diffs[-1].source
            diffs[-1].target = f"b/{match['target']}" if match["target"] else diffs[-1].target
        elif diffs and not in_header and line.startswith(("+", "-")) and line != "-- ":
            raise _refusal(
                "has a change after the end of a hunk", place, "the counts of its @@ line are wrong"
            )
    for changed in diffs:
        for name in (changed.source, changed.target):
            if name != "/dev/null" and not _is_in_source(name):
                message = f"names {name[:80]!r}; a patch may change files of the source only"
                hint = "use `git diff` or `envgen patch new`, and save it with LF line endings"
                raise _refusal(message, Place(file, changed.line, 1), hint)
    return diffs


def _is_in_source(name: str) -> bool:
    side, _, path = name.partition("/")
    outside = {"", ".", "..", ".git"}.intersection(path.lower().split("/"))
    return side in ("a", "b", "i", "w", "c", "o") and path.isprintable() and not outside


def strip(name: str) -> str:
    """A name without its a/ or b/."""
    return name.split("/", 1)[-1]


def _refusal(message: str, place: Place, hint: str = "") -> ProjectError:
    return ProjectError([Problem(message, place, hint)])


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Patch:
    """One patch: its file relative to the project, its bytes, and what it changes in the files that
    it touches.
    """

    name: str
    path: str
    content: bytes
    touches: tuple[str, ...]
    applies_to: str = ""
    diffs: tuple[FileDiff, ...] = field(default=(), compare=False)

    def is_python_only(self, package: str) -> bool:
        """True when it touches only Python files of the installed package, so that nothing is
        compiled again.
        """
        return all(file.startswith(f"{package}/") and file.endswith(".py") for file in self.touches)


@dataclass(frozen=True)
class Series:
    """The patches of one source in order."""

    folder: str
    patches: tuple[Patch, ...]

    def for_version(self, version: str) -> Series:
        """Without the patches that are not for ``version``. An unknown version ("") keeps them all."""
        return Series(
            self.folder, tuple(p for p in self.patches if in_range(p.applies_to, version))
        )

    def left_out(self, version: str) -> str:
        """A sentence about the patches that are not for ``version``; "" where all are."""
        others = [patch for patch in self.patches if not in_range(patch.applies_to, version)]
        names = ", ".join(f"{patch.name} (for {patch.applies_to})" for patch in others)
        if not others:
            return ""
        return f"{self.folder}: left out, because they are not for {version}: {names}"

    def split(self, package: str) -> tuple[tuple[Patch, ...], tuple[Patch, ...]]:
        """(built with the wheel, applied to what is installed), each in series order.

        A Python-only patch that shares a file with a patch of the first kind is built too, so the
        two groups touch different files and applying one after the other equals the series.
        """
        late = {patch.name for patch in self.patches if patch.is_python_only(package)}
        while True:
            built = tuple(patch for patch in self.patches if patch.name not in late)
            rest = tuple(patch for patch in self.patches if patch.name in late)
            touched = set[str]()
            for patch in built:
                touched.update(patch.touches)
            tied = {patch.name for patch in rest if touched.intersection(patch.touches)}
            if not tied:
                return built, rest
            late -= tied


def make_patch(name: str, path: str, content: bytes, place: Place) -> Patch:
    """A patch from its bytes. Raises ``ProjectError`` for what no patch may do; ``place``: its line
    in the series.
    """
    if len(content) > LARGEST:
        size = len(content) / (1 << 20)
        message = f"{path} is {size:.0f} MiB; a patch may have {LARGEST >> 20} MiB"
        raise _refusal(message, place, "use a fork instead")
    diffs = read_patch(content, path)
    if not diffs:
        raise _refusal(f"{path} changes no file", place, "remove it from the series")
    names = set()
    for file in diffs:
        names |= {file.source, file.target}
    names.discard("/dev/null")
    touches = tuple(sorted({strip(name) for name in names}))
    return Patch(name, path, content, touches, applies_to_of(content, path), tuple(diffs))


def load_series(root: Path, name: str, *, begun: bool = True) -> Series:
    """Read ``patches/<name>/series`` and its patches. Raises ``ProjectError`` with all problems.

    ``begun`` False: one that is not there is empty, since `envgen patch new` begins it.
    """
    folder = f"patches/{name}"
    series_path = f"{folder}/series"
    is_file = (root / folder).is_file()
    if (
        not is_file
        and not (root / series_path).exists()
        and not any((root / folder).glob("*.patch"))
    ):
        if not begun:
            return Series(folder, ())
        hint = f"correct `patches: {name}`, or take it out; `envgen patch new` begins a series"
        raise _refusal("does not exist, so no patch would be applied", Place(series_path), hint)
    text = _read(root, series_path, Place(series_path)).decode("utf-8", "replace")
    problems: list[Problem] = []
    patches = []
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        place = Place(series_path, number, 1, text=line.rstrip("\r"))
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
    if begun and not patches:
        hint = f"list them, one a line; or take `patches: {name}` out of the project file"
        raise _refusal("names no patch", Place(series_path), hint)
    return Series(folder, tuple(patches))


def _read(root: Path, path: str, place: Place) -> bytes:
    """The bytes of a file of the project. A link that leads out of the project is refused, not
    followed.
    """
    file = root / path
    hint = "correct the name, or remove the line"
    try:
        if not file.resolve(strict=True).is_relative_to(root.resolve()):
            raise _refusal(f"{path} is a link that leaves the project", place, "copy the file here")
        return files.read(file, limit=LARGEST)
    except FileNotFoundError:
        raise _refusal(f"{path} does not exist", place, hint) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise _refusal(f"{path} cannot be read: {error}", place, hint) from None


_TITLE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def add(root: Path, folder: str, title: str, head: str, diff: bytes) -> str:
    """Write a new patch with the next free number, and append it to the series. Returns its path."""
    if not _TITLE.fullmatch(title):
        hint = "write small letters, digits and single dashes, as in: faster-moe"
        raise UsageError(f"{title!r} is not a name for a patch", hint=hint)
    file = root / folder / "series"
    if not file.resolve().is_relative_to(root.resolve()):
        raise RefusedError(f"{folder} leads out of the project")
    text = files.read(file).decode() if file.exists() else ""
    names = [path.name for path in file.parent.glob("*.patch")]
    for line in text.splitlines():
        entry, _, _ = line.partition("#")
        names.append(entry.strip())
    numbers = [whole_number(name[:4]) or 0 for name in names]
    name = f"{max(numbers, default=0) + 1:04d}-{title}.patch"
    path = _write(root, f"{folder}/{name}", head.encode() + b"\n" + diff)
    if text and not text.endswith("\n"):
        text += "\n"
    files.write(file, f"{text}{name}\n".encode())
    return path


def _write(root: Path, path: str, content: bytes) -> str:
    make_patch(path, path, content, Place(path))  # raises before anything is written
    files.write(root / path, content, within=root)
    return path
