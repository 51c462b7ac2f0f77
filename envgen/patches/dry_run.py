"""DryRun: a series against the bare files of a source, in a throw-away folder. git itself decides what fits."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from envgen import files
from envgen.engine.git import git
from envgen.errors import Place
from envgen.patches.header import in_range
from envgen.patches.inspect import read_patch, strip
from envgen.patches.series import Patch, Series
from envgen.patches.trees import Tree, put


class State(Enum):
    """How a patch and a source stand to each other."""

    APPLIES = "applies"
    OFFSET = "applies with offset"
    FUZZY = "fuzzy"
    ALREADY = "already applied"
    PARTLY = "partly applied"
    CONFLICT = "conflict"
    OUT_OF_RANGE = "out of range"

    @property
    def fits(self) -> bool:
        """Whether a build takes it as it is: at any place, but with all of its context."""
        return self in (State.APPLIES, State.OFFSET)


@dataclass(frozen=True)
class HunkVerdict:
    """One hunk. ``line`` is its line in the patch; ``offset`` how many lines off it was found."""

    file: str
    number: int
    line: int
    heading: str
    state: State
    offset: int = 0
    expected: tuple[str, ...] = ()  # the lines that the patch wants to find
    actual: tuple[str, ...] = ()  # the most similar lines that the source has
    actual_at: int = 0  # the line number of the first of them; 0: nothing similar
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """One patch against one source. ``measured`` is how it would stand if its range did not matter."""

    patch: str
    path: str
    applies_to: str
    state: State
    measured: State | None
    hunks: tuple[HunkVerdict, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        """False where a build would stop."""
        return self.state.fits or self.state is State.OUT_OF_RANGE


@dataclass(frozen=True)
class DryRun:
    """A whole series against one source."""

    series: str
    tree: str
    version: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """False where a build would stop."""
        return all(verdict.ok for verdict in self.verdicts)


APPLY = ("apply", "--whitespace=nowarn")
# Less context than the patch has, as git itself offers it. One line is the least that still says where.
_FUZZ = ("-C2", "-C1")
_SUCCEEDED = re.compile(r"^Hunk #(\d+) succeeded at (\d+)(?: \(offset (-?\d+) lines?\))?", re.MULTILINE)
_CHECKING = re.compile(r"^Checking patch (.*)\.\.\.$", re.MULTILINE)


def dry_run(tree: Tree, series: Series, *, beyond_range: bool = False) -> DryRun:
    """Try each patch of a series, in order, on top of those before it that fit.

    ``beyond_range`` also measures patches that are not for this version (their state stays "out of range").
    """
    names = {name for patch in series.patches for name in patch.touches}
    with files.Scratch("patches") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        put(folder, tree.read(names))
        stage = Stage(folder)
        verdicts = []
        for patch in series.patches:
            inside = in_range(patch.header.applies_to, tree.version)
            if not inside and not beyond_range:
                verdicts.append(_verdict(patch, State.OUT_OF_RANGE, None))
                continue
            found = stage.try_patch(patch)
            if not inside:
                found = replace(found, state=State.OUT_OF_RANGE)
            verdicts.append(found)
    return DryRun(series.folder, tree.label, tree.version, tuple(verdicts))


def _verdict(
    patch: Patch, state: State, measured: State | None, hunks: tuple[HunkVerdict, ...] = (), reason: str = ""
) -> Verdict:
    return Verdict(patch.name, patch.path, patch.header.applies_to, state, measured, hunks, reason)


class Stage:
    """A folder with the files that a series touches. Patches that fit change it, so that the next is on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def try_patch(self, patch: Patch) -> Verdict:
        """Judge one patch, and apply it if it fits (a fuzzy one too, so that those after it can be judged)."""
        code, said = self._apply(patch.content, "--check", "-v")
        if code == 0:
            hunks = tuple(_placed(patch, said))
            compiled = self._compiling(patch)
            self._apply(patch.content)
            broken = sorted(compiled - self._compiling(patch))
            if broken:
                reason = f"leaves {broken[0]}, which Python cannot compile"
                return _verdict(patch, State.CONFLICT, State.CONFLICT, hunks, reason)
            state = State.OFFSET if any(hunk.offset for hunk in hunks) else State.APPLIES
            return _verdict(patch, state, state, hunks)
        if self._apply(patch.content, "--check", "-R")[0] == 0:
            return _verdict(patch, State.ALREADY, State.ALREADY)
        return self._judge_parts(patch, said)

    def _judge_parts(self, patch: Patch, said: str) -> Verdict:
        hunks = tuple(self._judge(*part) for part in _parts(patch))
        states = {hunk.state for hunk in hunks}
        reason = "" if hunks else _first_error(said)
        if State.CONFLICT in states or not hunks:
            state = State.CONFLICT
        elif State.ALREADY in states:
            state = State.ALREADY if states == {State.ALREADY} else State.PARTLY
        elif State.FUZZY in states:
            state = State.FUZZY
            fitted = any(self._apply(patch.content, less)[0] == 0 for less in _FUZZ)
            if not fitted:
                state, reason = State.CONFLICT, _first_error(said)
        else:  # each part fits alone, but not all of them together
            state, reason = State.CONFLICT, _first_error(said)
        return _verdict(patch, state, state, hunks, reason)

    def _judge(self, verdict: HunkVerdict, alone: bytes) -> HunkVerdict:
        """One hunk by itself: does it fit, is it in already, or does it fit with less context?"""
        code, said = self._apply(alone, "--check", "-v")
        if code == 0:
            offset = next((int(match[3] or 0) for match in _SUCCEEDED.finditer(said)), 0)
            return replace(verdict, state=State.OFFSET if offset else State.APPLIES, offset=offset)
        if self._apply(alone, "--check", "-R")[0] == 0:
            return replace(verdict, state=State.ALREADY)
        if any(self._apply(alone, "--check", less)[0] == 0 for less in _FUZZ):
            return replace(verdict, state=State.FUZZY)
        path = self.folder / verdict.file
        if not path.is_file():
            return replace(verdict, reason="the source has no such file")
        if not verdict.expected:
            return replace(verdict, reason=_first_error(said))
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        at, actual = most_similar(verdict.expected, lines)
        return replace(verdict, actual=actual, actual_at=at)

    def _apply(self, content: bytes, *options: str) -> tuple[int, str]:
        answer = git([*APPLY, *options, "-"], cwd=self.folder, stdin=content, check=False)
        return answer.code, answer.stderr

    def _compiling(self, patch: Patch) -> set[str]:
        """The Python files of a patch that compile as they now are, or are not there."""
        return {name for name in patch.touches if name.endswith(".py") and compiles(self.folder / name)}


def compiles(path: Path) -> bool:
    """Whether a Python file compiles. Nothing of it runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except FileNotFoundError:
        return True
    except (SyntaxError, ValueError):
        return False
    return True


def _placed(patch: Patch, said: str) -> Iterator[HunkVerdict]:
    """The hunks of a patch that fits, with the offsets that git tells."""
    sections = _CHECKING.split(said)
    by_file = dict(zip(sections[1::2], sections[2::2], strict=False))
    for hunk, _ in _parts(patch):
        found = {int(m[1]): int(m[3] or 0) for m in _SUCCEEDED.finditer(by_file.get(hunk.file, ""))}
        offset = found.get(hunk.number, 0)
        yield replace(hunk, state=State.OFFSET if offset else State.APPLIES, offset=offset)


def _parts(patch: Patch) -> Iterator[tuple[HunkVerdict, bytes]]:
    """Each hunk, and a patch with that hunk alone. A file without hunks (a rename, a mode) is one part, number 0."""
    for changed in read_patch(patch.content, patch.path, Place(patch.path)):
        name = strip(changed.target if changed.source == "/dev/null" else changed.source)
        if not changed.hunks:
            yield HunkVerdict(name, 0, 1, "the whole file", State.CONFLICT), changed.alone()
        for number, hunk in enumerate(changed.hunks, 1):
            verdict = HunkVerdict(name, number, hunk.line, hunk.heading, State.CONFLICT, expected=hunk.expected)
            yield verdict, changed.alone(hunk)


def _first_error(said: str) -> str:
    errors = [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]
    telling = [line for line in errors if not line.startswith("while searching")]
    return (telling or errors or ["git apply refused it"])[0]


def most_similar(expected: Sequence[str], lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """(line number from 1, lines) of the stretch that shares most lines with ``expected``; (0, ()) when none does.

    A rare line weighs more than one that stands everywhere (``else:``, a bracket, nothing).
    """
    common = Counter(line.strip() for line in lines)
    weights = [1 / common[line.strip()] if line.strip() else 0.0 for line in lines]
    wanted = Counter(line.strip() for line in expected)
    size = min(len(expected), len(lines))
    best, at = 0.0, -1
    for start in range(len(lines) - size + 1):
        left = dict(wanted)
        score = 0.0
        for position in range(start, start + size):
            line = lines[position].strip()
            if left.get(line, 0):
                left[line] -= 1
                aligned = expected[position - start].strip() == line
                score += weights[position] * (1.1 if aligned else 1.0)
        if score > best + 1e-9:
            best, at = score, start
    if at < 0:
        return 0, ()
    return at + 1, tuple(lines[at : at + size])
