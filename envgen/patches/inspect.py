"""Reads a unified diff: which files and hunks it has, and that it does nothing that no patch may. git applies it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from envgen.errors import Place, Problem, ProjectError
from envgen.text import masked

LARGEST = 4 << 20
_MODES = ("100644", "100755")
_WITHOUT_HUNKS = ("new file mode ", "deleted file mode ", "old mode ", "rename ", "copy ")
_MODE_LINES = ("new file mode ", "deleted file mode ", "old mode ", "new mode ")
_NAMED = ("--- ", "+++ ", "diff --git ", "rename ", "copy ")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")


@dataclass
class Hunk:
    """``line``: of its @@ line in the patch. ``lines``: as they are there, each with its mark."""

    line: int
    heading: str
    lines: list[str] = field(default_factory=list)

    @property
    def expected(self) -> tuple[str, ...]:
        """The lines that it wants to find."""
        return tuple(line[1:] for line in self.lines if not line.startswith(("+", "\\")))


@dataclass
class FilePatch:
    """What a patch does to one file. ``info``: git's lines before the names; names as they stand there."""

    source: str = ""
    target: str = ""
    info: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)

    def alone(self, hunk: Hunk | None = None) -> bytes:
        """A patch with one hunk of it, or with its ``info`` only."""
        lines = [*self.info]
        if hunk:
            lines += [f"--- {self.source}", f"+++ {self.target}", hunk.heading, *hunk.lines]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def read_patch(content: bytes, file: str, fallback: Place) -> list[FilePatch]:
    """Parse a patch and refuse what no patch may do, with the line. ``fallback`` is where its name stands."""
    if len(content) > LARGEST:
        size = f"{len(content) / (1 << 20):.0f} MiB"
        raise _refusal(f"is {size}; a patch may have {LARGEST >> 20} MiB", Place(file), "make it a fork instead")
    if not content.strip():
        raise _refusal("changes no file: it is empty", fallback, "remove it from the series")
    lines = _Lines(content.decode("utf-8", "surrogateescape").split("\n"), file)
    _refuse_binary(lines)
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
        """The first line that begins so and contains ``part``; the first of all when none does."""
        found = (n for n, line in enumerate(self.all, 1) if line.startswith(starts) and part in line)
        return self.place(next(found, 1))

    def no_diff(self, number: int, why: str, hint: str = "") -> ProjectError:
        return _refusal(f"is not a unified diff: {why}", self.place(number), hint)


def _parsed(lines: _Lines) -> list[FilePatch]:
    """The files of a patch. Words around them (a mail's head, its signature) are passed over."""
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
            # It looks like a change, and git would pass over it in silence.
            raise lines.no_diff(number, "this line is in no hunk", "the counts of an @@ line are wrong")
    for changed in found:
        for info in changed.info:
            if info.startswith(("rename from ", "copy from ")):
                changed.source = "a/" + info.split(" ", 2)[2]
            elif info.startswith(("rename to ", "copy to ")):
                changed.target = "b/" + info.split(" ", 2)[2]
    return found


def _hunk(lines: _Lines, number: int) -> tuple[Hunk, int]:
    """The hunk whose @@ line is ``number``, and how many lines have been read then."""
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
            raise lines.no_diff(at + 1, "the hunk is shorter than its @@ line says", f"it begins in line {number}")
        hunk.lines.append(line)
        at += 1
    return hunk, at


def _refuse_binary(lines: _Lines) -> None:
    for number, line in enumerate(lines.all, 1):
        if line.rstrip("\r") == "GIT binary patch" or line.startswith("Binary files "):
            hint = "a binary file can't be read in review: fetch it in the source's install.prepare instead"
            raise _refusal("changes a binary file", lines.place(number), hint)


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
        raise _refusal("has the line ends of Windows in its own headers", place, "save it with LF (dos2unix)")
    if name.startswith('"'):
        raise _refusal(f"touches {name[:80]}, a name with unusual characters", place)
    if name.startswith("/"):
        raise _refusal(f"touches {name!r}, an absolute path, which no patch may touch", place)
    side, slash, rest = name.partition("/")
    parts = rest.split("/")
    if not slash or side not in ("a", "b", "i", "w", "c", "o"):
        raise _refusal(f"names {name!r} without the a/ or b/ of git", place, "make it with `git diff` or `patch new`")
    if rest.startswith("/") or {"", ".", ".."}.intersection(parts):
        raise _refusal(f"touches {rest!r}, which no patch may touch", place, "stay inside of the source")
    if any(part.lower().rstrip(". ") in (".git", "git~1") for part in parts):
        raise _refusal(f"touches {rest!r}, git's own data, which no patch may touch", place)


def _refusal(message: str, place: Place, hint: str = "") -> ProjectError:
    return ProjectError([Problem(message, place, hint)])
