"""A series against the bare files of a source, in a throw-away folder. git itself decides what fits."""

from __future__ import annotations

import contextlib
import difflib
import re
import tarfile
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from envgen import files
from envgen.engine.git import Repository, git
from envgen.errors import EnvgenError, Place
from envgen.patches.series import Patch, Series, in_range, read_patch, strip
from envgen.text import counted, reason_of, table, visible

LARGEST = 16 << 20  # bytes of one file


@dataclass(frozen=True)
class File:
    """One file of a source."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class SdistTree:
    """A source distribution (.tar.gz), read without unpacking it."""

    archive: Path
    label: str
    version: str

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files. Nothing is written anywhere, so what else the archive holds can do no harm."""
        wanted, found = set(names), dict[str, File]()
        with self._open() as archive:
            for member in archive:
                name = member.name.split("/", 1)[-1]
                if name not in wanted:
                    continue
                if not member.isfile():
                    raise EnvgenError(f"{name} is not a plain file in {self.label}: a patch may not touch it")
                if member.size > LARGEST:
                    raise EnvgenError(f"{name} in {self.label} has more than {LARGEST >> 20} MiB")
                data = archive.extractfile(member)
                if data is not None:
                    found[name] = File(data.read(), bool(member.mode & 0o100))
                if len(found) == len(wanted):
                    break
        return found

    def names(self) -> set[str]:
        """All plain files, from the archive's own list."""
        with self._open() as archive:
            return {member.name.split("/", 1)[-1] for member in archive if member.isfile()}

    @contextlib.contextmanager
    def _open(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.archive, "r|gz") as archive:
                yield archive
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            message = f"cannot read {self.archive.name}: {reason_of(error)}"
            raise EnvgenError(message, hint="delete it; it is fetched again") from None


@dataclass(frozen=True)
class GitTree:
    """A commit in a repository on this machine."""

    repository: Repository
    commit: str
    label: str
    version: str = ""

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files, straight from the commit; the work tree is not looked at."""
        found: dict[str, File] = {}
        for name in sorted(names):
            listed = self.repository.git(["ls-tree", "-z", self.commit, "--", f":(literal){name}"]).text
            if not listed.rstrip("\0"):
                continue
            mode, kind, blob = listed.partition("\t")[0].split(" ")
            if kind == "tree":
                continue
            if mode not in ("100644", "100755"):
                raise EnvgenError(f"{name} is not a plain file in {self.label}: a patch may not touch it")
            data = self.repository.git(["cat-file", "blob", blob], timeout=120).stdout
            found[name] = File(data, mode == "100755")
        return found

    def names(self) -> set[str]:
        """All plain files of the commit."""
        listed = self.repository.git(["ls-tree", "-r", "-z", self.commit], timeout=300).text
        lines = [line.partition("\t") for line in listed.split("\0") if line]
        return {name for head, _, name in lines if head.startswith("100")}


Tree: TypeAlias = "SdistTree | GitTree"  # a source at one version, only ever read


def put(folder: Path, files: dict[str, File]) -> None:
    """Write files below a folder of ours. The names come from patches that were inspected before."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


class State(str, Enum):
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
    number: int  # 0: a file without hunks (a rename, a mode)
    line: int
    heading: str
    state: State = State.CONFLICT
    offset: int = 0
    expected: tuple[str, ...] = ()  # the lines that the patch wants to find
    actual: tuple[str, ...] = ()  # the most similar lines that the source has
    actual_at: int = 0  # the line number of the first of them; 0: nothing similar
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """One patch against one source. ``measured`` is how it would stand if its range did not matter."""

    name: str
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
_SUCCEEDED = re.compile(r"^Hunk #(\d+) succeeded at \d+(?: \(offset (-?\d+) lines?\))?", re.MULTILINE)
_CHECKING = re.compile(r"^Checking patch (.*)\.\.\.$", re.MULTILINE)


def dry_run(tree: Tree, series: Series, *, beyond_range: bool = False) -> DryRun:
    """Try each patch of a series, in order, on top of those before it that fit.

    ``beyond_range`` also measures patches that are not for this version (their state stays "out of range").
    """
    verdicts = []
    with files.Scratch("patches") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        put(folder, tree.read({name for patch in series.patches for name in patch.touches}))
        for patch in series.patches:
            inside = in_range(patch.header.applies_to, tree.version)
            state, hunks, reason = _tried(folder, patch) if inside or beyond_range else (None, (), "")
            now = state if inside and state else State.OUT_OF_RANGE
            verdicts.append(Verdict(patch.name, patch.path, patch.header.applies_to, now, state, hunks, reason))
    return DryRun(series.folder, tree.label, tree.version, tuple(verdicts))


def _tried(folder: Path, patch: Patch) -> tuple[State, tuple[HunkVerdict, ...], str]:
    """Judge one patch, and apply it if it fits (a fuzzy one too, so that those after it can be judged)."""
    code, said = _apply(folder, patch.content, "--check", "-v")
    if code == 0:
        hunks = tuple(_placed(patch, said))
        compiled = _compiling(folder, patch)
        _apply(folder, patch.content)
        if broken := sorted(compiled - _compiling(folder, patch)):
            return State.CONFLICT, hunks, f"leaves {broken[0]}, which Python cannot compile"
        return State.OFFSET if any(hunk.offset for hunk in hunks) else State.APPLIES, hunks, ""
    if _apply(folder, patch.content, "--check", "-R")[0] == 0:
        return State.ALREADY, (), ""
    hunks = tuple(_judged(folder, *part) for part in _parts(patch))
    states = {hunk.state for hunk in hunks}
    if State.CONFLICT in states:
        return State.CONFLICT, hunks, ""
    if State.ALREADY in states:
        return State.ALREADY if states == {State.ALREADY} else State.PARTLY, hunks, ""
    if State.FUZZY in states and any(_apply(folder, patch.content, less)[0] == 0 for less in _FUZZ):
        return State.FUZZY, hunks, ""
    return State.CONFLICT, hunks, _first_error(said)  # each part fits alone, but not all of them together


def _judged(folder: Path, verdict: HunkVerdict, alone: bytes) -> HunkVerdict:
    """One hunk by itself: does it fit, is it in already, or does it fit with less context?"""
    code, said = _apply(folder, alone, "--check", "-v")
    if code == 0:
        offset = next((int(match[2] or 0) for match in _SUCCEEDED.finditer(said)), 0)
        return replace(verdict, state=State.OFFSET if offset else State.APPLIES, offset=offset)
    if _apply(folder, alone, "--check", "-R")[0] == 0:
        return replace(verdict, state=State.ALREADY)
    if any(_apply(folder, alone, "--check", less)[0] == 0 for less in _FUZZ):
        return replace(verdict, state=State.FUZZY)
    path = folder / verdict.file
    if not path.is_file():
        return replace(verdict, reason="the source has no such file")
    if not verdict.expected:
        return replace(verdict, reason=_first_error(said))
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    at, actual = most_similar(verdict.expected, lines)
    return replace(verdict, actual=actual, actual_at=at)


def _apply(folder: Path, content: bytes, *options: str) -> tuple[int, str]:
    answer = git([*APPLY, *options, "-"], cwd=folder, stdin=content, check=False)
    return answer.code, answer.stderr


def _compiling(folder: Path, patch: Patch) -> set[str]:
    """The Python files of a patch that compile as they now are, or are not there."""
    return {name for name in patch.touches if name.endswith(".py") and compiles(folder / name)}


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
        found = {int(number): int(offset or 0) for number, offset in _SUCCEEDED.findall(by_file.get(hunk.file, ""))}
        offset = found.get(hunk.number, 0)
        yield replace(hunk, state=State.OFFSET if offset else State.APPLIES, offset=offset)


def _parts(patch: Patch) -> Iterator[tuple[HunkVerdict, bytes]]:
    """Each hunk, and a patch with that hunk alone. A file without hunks is one part."""
    for changed in read_patch(patch.content, patch.path, Place(patch.path)):
        name = strip(changed.target if changed.source == "/dev/null" else changed.source)
        if not changed.hunks:
            yield HunkVerdict(name, 0, 1, "the whole file"), changed.alone()
        for number, hunk in enumerate(changed.hunks, 1):
            yield HunkVerdict(name, number, hunk.line, hunk.heading, expected=hunk.expected), changed.alone(hunk)


def _first_error(said: str) -> str:
    errors = [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]
    telling = [line for line in errors if not line.startswith("while searching")]
    return (telling or errors or ["git apply refused it"])[0]


def most_similar(expected: Sequence[str], lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """(line number from 1, lines) of the stretch around the most letters in a row that are as ``expected``.

    (0, ()) where no line is.
    """
    wanted, there = ([line.strip() for line in text] for text in (expected, lines))
    blocks = difflib.SequenceMatcher(None, wanted, there, autojunk=False).get_matching_blocks()
    best = max(blocks, key=lambda block: len("".join(wanted[block.a : block.a + block.size])))
    at = max(0, best.b - best.a)
    return (at + 1, tuple(lines[at : at + len(expected)])) if best.size else (0, ())


# --- how verdicts look: lines for people, keys for programs -----------------------------------------------------------

_SHORT = {State.OFFSET: "offset", State.FUZZY: "FUZZY", State.ALREADY: "ALREADY IN", State.PARTLY: "PARTLY IN"}
_CURES = {
    State.FUZZY: "some context differs, and builds apply exactly: carry it over with `envgen patch refresh`",
    State.ALREADY: "the source has it: narrow its Applies-To, or remove it with `envgen patch drop`",
    State.PARTLY: "the source has a part of it: carry the rest over with `envgen patch refresh`",
    State.CONFLICT: "carry it over with `envgen patch refresh`, or narrow its Applies-To",
}


def report_lines(run: DryRun, *, only_bad: bool = False) -> list[str]:
    """One source: a line a patch, and both sides of what does not fit."""
    found = [] if only_bad else [f"{run.tree} ({run.series})"]
    for verdict in run.verdicts:
        if only_bad and verdict.ok:
            continue
        sentence = verdict.state.value
        if verdict.state is State.OUT_OF_RANGE:
            sentence += f", skipped (it is for {verdict.applies_to})"
        elif verdict.state is State.OFFSET:
            sentence += f" ({', '.join(f'{hunk.offset:+d}' for hunk in verdict.hunks if hunk.offset)} lines)"
        found.append(f"  {'ok ' if verdict.ok else 'BAD'} {verdict.name}: {sentence}")
        if verdict.ok:
            continue
        found += [f"        {visible(verdict.reason)}"] if verdict.reason else []
        for hunk in verdict.hunks:
            found += _hunk(verdict, hunk, run.tree)
        found.append(f"      hint: {_CURES[verdict.state]}")
    return found


def _hunk(verdict: Verdict, hunk: HunkVerdict, tree: str) -> list[str]:
    where = f"hunk {hunk.number} {hunk.heading}" if hunk.number else hunk.heading
    head = f"      {verdict.path}:{hunk.line}: {visible(hunk.file)}, {visible(where)}: {hunk.state.value}"
    found = [head + (f" ({visible(hunk.reason)})" if hunk.reason else "")]
    if hunk.state is not State.CONFLICT or not hunk.expected:
        return found
    compared = [f"-{line}" for line in hunk.expected]
    if hunk.actual:
        found.append("        --- what the patch expects")
        found.append(f"        +++ what {tree} has from line {hunk.actual_at} on")
        compared = list(difflib.unified_diff(hunk.expected, hunk.actual, lineterm="", n=3))[2:]
    return found + [f"        {visible(line, lines=True)}" for line in compared]


def report_matrix(runs: Sequence[DryRun]) -> list[str]:
    """Releases down, patches across, and the last release that each patch fits."""
    names = [verdict.name for verdict in runs[0].verdicts]
    found = [f"{runs[0].series}: {counted(len(names), 'patch', 'patches')}, {counted(len(runs), 'release')}"]
    found += [f"  [{number}] {name}" for number, name in enumerate(names, 1)]
    rows = [["", *(f"[{number}]" for number in range(1, len(names) + 1))]]
    rows += [[run.version, *map(_cell, run.verdicts)] for run in runs]
    found += table(rows, indent="  ")
    if any(v.state is State.OUT_OF_RANGE for r in runs for v in r.verdicts):
        found.append("  (in brackets: not for that release, so a build leaves it out)")
    for number, (name, last) in enumerate(last_fits(runs).items(), 1):
        found.append(f"  [{number}] {name}: last fits {last}" if last else f"  [{number}] {name}: fits none of them")
    return found


def _cell(verdict: Verdict) -> str:
    """One field of the matrix; in brackets where the patch is not for that release, and so is skipped."""
    measured = verdict.measured or State.CONFLICT
    short = _SHORT.get(measured, "CONFLICT" if measured is State.CONFLICT else measured.value)
    return f"({short.lower()})" if verdict.state is State.OUT_OF_RANGE else short


def last_fits(runs: Sequence[DryRun]) -> dict[str, str]:
    """The newest of these releases that each patch fits, its range not considered."""
    found: dict[str, str] = {}
    for run in runs:
        for verdict in run.verdicts:
            fits = verdict.measured is not None and verdict.measured.fits
            found[verdict.name] = run.version if fits else found.get(verdict.name, "")
    return found


def as_document(source: str, run: DryRun) -> dict[str, Any]:
    """One dry run for programs."""
    verdicts = {"ok": run.ok, "patches": [{**asdict(one), "ok": one.ok} for one in run.verdicts]}
    return {"source": source, "series": run.series, "tree": run.tree, "version": run.version, **verdicts}
