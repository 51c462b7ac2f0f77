"""What a patch touches, and what no patch may do. The diff itself is read by unidiff, and applied by git alone."""

from __future__ import annotations

from collections.abc import Iterator

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from envgen.errors import Place, Problem, ProjectError
from envgen.text import masked

LARGEST = 4 << 20
_MODES = ("100644", "100755")
_WITHOUT_HUNKS = ("new file mode ", "deleted file mode ", "old mode ", "rename ", "copy ")
_MODE_LINES = ("new file mode ", "deleted file mode ", "old mode ", "new mode ")


def read_patch(content: bytes, file: str, fallback: Place) -> PatchSet:
    """Parse a patch and refuse what no patch may do, with the line. ``fallback`` is where its name stands."""
    # Imported here: most projects have no patches, and it costs more than the rest of a render.
    if len(content) > LARGEST:
        size = f"{len(content) / (1 << 20):.0f} MiB"
        raise _refusal(f"is {size}; a patch may have {LARGEST >> 20} MiB", Place(file), "make it a fork instead")
    if not content.strip():
        raise _refusal("changes no file: it is empty", fallback, "remove it from the series")
    lines = _Lines(content.decode("utf-8", "surrogateescape"))
    try:
        found = PatchSet(lines)
    except UnidiffParseError as error:
        raise _refusal(f"is not a unified diff: {error}", lines.place(file, lines.number)) from None
    except (AttributeError, IndexError, NameError, TypeError, ValueError) as error:  # unidiff on what is no diff
        raise _refusal(f"is not a unified diff: {error}", lines.place(file, lines.number)) from None
    _refuse_binary(lines, file)
    if not found:
        raise _refusal("changes no file", fallback, "remove it from the series")
    _refuse_stray_lines(found, lines, file)
    for changed in found:
        _check_info(changed, lines, file)
        for name in (changed.source_file, changed.target_file):
            _check_name(name, lines, file)
    return found


def touched(found: PatchSet) -> tuple[str, ...]:
    """The files that a patch touches, old and new names, without their a/ and b/."""
    names = {name for file in found for name in (file.source_file, file.target_file) if name != "/dev/null"}
    return tuple(sorted({strip(name) for name in names}))


def strip(name: str) -> str:
    """A name without its a/ or b/."""
    return name.split("/", 1)[-1]


class _Lines:
    """The lines of a patch, counting how far a reader has come."""

    def __init__(self, text: str) -> None:
        self.all = text.split("\n")
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        last = len(self.all)
        for number, line in enumerate(self.all, 1):
            self.number = number
            if number < last:
                yield line + "\n"
            elif line:
                yield line

    def place(self, file: str, number: int) -> Place:
        text = self.all[number - 1] if 0 < number <= len(self.all) else ""
        return Place(file, number, 1, text=masked(text[:160]))

    def find(self, part: str, starts: tuple[str, ...]) -> int:
        """The first line that begins so and contains ``part``; 1 when none does."""
        return next((n for n, line in enumerate(self.all, 1) if line.startswith(starts) and part in line), 1)


def _refuse_binary(lines: _Lines, file: str) -> None:
    for number, line in enumerate(lines.all, 1):
        if line.rstrip("\r") == "GIT binary patch" or line.startswith("Binary files "):
            hint = "a binary file can't be read in review: fetch it in the source's install.prepare instead"
            raise _refusal("changes a binary file", lines.place(file, number), hint)


def _refuse_stray_lines(found: PatchSet, lines: _Lines, file: str) -> None:
    """Lines that look like a change but that no hunk counts: git would pass over them in silence."""
    counted = {line.diff_line_no or 0 for changed in found for hunk in changed for line in hunk}
    hunks = min(counted, default=0)
    for number, line in enumerate(lines.all, 1):
        stray = line.startswith(("+", "-", "@@ ")) and not line.startswith(("+++ ", "--- ")) and line != "-- "
        if number > hunks and stray and number not in counted and not line.startswith("@@ -"):
            raise _refusal(
                "is not a unified diff: this line is in no hunk",
                lines.place(file, number),
                "the counts of an @@ line are wrong",
            )
    for changed in found:
        if not len(changed) and not any(info.startswith(_WITHOUT_HUNKS) for info in changed.patch_info or ()):
            name = changed.target_file
            raise _refusal(f"changes nothing in {name}", lines.place(file, lines.find(name, _NAMED)))


def _check_info(changed: PatchedFile, lines: _Lines, file: str) -> None:
    for info in changed.patch_info or ():
        line = info.rstrip("\n")
        mode = ""
        if line.startswith(("rename from ", "rename to ", "copy from ", "copy to ")):
            _check_name("a/" + line.split(" ", 2)[2], lines, file)
        if line.startswith(_MODE_LINES) or (line.startswith("index ") and line.count(" ") == 2):
            mode = line.rsplit(" ", 1)[1]
        if mode and mode not in _MODES:
            kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, f"a file of mode {mode!r}")
            raise _refusal(
                f"touches {kind}, which no patch may touch", lines.place(file, lines.find(line, (line[:6],)))
            )


_NAMED = ("--- ", "+++ ", "diff --git ", "rename ", "copy ")


def _check_name(name: str, lines: _Lines, file: str) -> None:
    if name == "/dev/null":
        return
    place = lines.place(file, lines.find(name, _NAMED))
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
