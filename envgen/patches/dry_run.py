"""A series against the bare files of a source, in a throw-away folder. git itself decides what fits."""

from __future__ import annotations

import contextlib
import difflib
import re
import tarfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

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


class Tree(Protocol):
    """A source at one version, only ever read."""

    @property
    def label(self) -> str:
        """What it is, for people: ``vllm 0.14.0``."""
        ...

    @property
    def version(self) -> str:
        """Its release number, or nothing when it has none."""
        ...

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files; those that are not there are left out."""
        ...

    def names(self) -> set[str]:
        """All plain files."""
        ...


@dataclass(frozen=True)
class SdistTree:
    """A source distribution (.tar.gz), read without unpacking it."""

    archive: Path
    label: str
    version: str

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files. Nothing is written anywhere, so what else the archive holds can do no harm."""
        wanted, found = set(names), dict[str, File]()
        with self._opened() as archive:
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
        with self._opened() as archive:
            return {member.name.split("/", 1)[-1] for member in archive if member.isfile()}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.archive, "r|gz") as archive:
                yield archive
        except (tarfile.TarError, EOFError, OSError) as error:
            raise EnvgenError(
                f"cannot read {self.archive.name}: {reason_of(error)}", hint="delete it; it is fetched again"
            ) from None


@dataclass(frozen=True)
class WheelTree:
    """A wheel, which may lie on a server: only what is asked for is fetched. It has what is installed, no more."""

    file: BinaryIO
    label: str
    version: str

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files."""
        with self._archive() as archive:
            there = {info.filename: info for info in archive.infolist() if info.filename in names}
            if large := [name for name, info in there.items() if info.file_size > LARGEST]:
                raise EnvgenError(f"{large[0]} in {self.label} is too large to be patched")
            return {name: File(archive.read(info)) for name, info in there.items()}

    def names(self) -> set[str]:
        """All plain files."""
        with self._archive() as archive:
            return {info.filename for info in archive.infolist() if not info.is_dir()}

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.file) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise EnvgenError(f"cannot read {self.label}: {reason_of(error)}", hint="try again") from None


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


def put(folder: Path, files: dict[str, File]) -> None:
    """Write files below a folder of ours. The names come from patches that were inspected before."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


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


_SHORT = {
    State.APPLIES: "applies",
    State.OFFSET: "offset",
    State.FUZZY: "FUZZY",
    State.ALREADY: "ALREADY IN",
    State.PARTLY: "PARTLY IN",
    State.CONFLICT: "CONFLICT",
}
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
        found.append(f"  {'ok ' if verdict.ok else 'BAD'} {verdict.patch}: {_sentence(verdict)}")
        if verdict.ok:
            continue
        if verdict.reason:
            found.append(f"        {visible(verdict.reason)}")
        for hunk in verdict.hunks:
            found += _hunk(verdict, hunk, run.tree)
        if verdict.state in _CURES:
            found.append(f"      hint: {_CURES[verdict.state]}")
    return found


def _sentence(verdict: Verdict) -> str:
    if verdict.state is State.OUT_OF_RANGE:
        return f"out of range, skipped (it is for {verdict.applies_to})"
    if verdict.state is State.OFFSET:
        return f"applies with offset ({', '.join(f'{h.offset:+d}' for h in verdict.hunks if h.offset)} lines)"
    return str(verdict.state.value)


def _hunk(verdict: Verdict, hunk: HunkVerdict, tree: str) -> list[str]:
    where = f"hunk {hunk.number} {hunk.heading}" if hunk.number else hunk.heading
    head = f"      {verdict.path}:{hunk.line}: {visible(hunk.file)}, {visible(where)}: {hunk.state.value}"
    found = [head + (f" ({visible(hunk.reason)})" if hunk.reason else "")]
    if hunk.state is not State.CONFLICT or not hunk.expected:
        return found
    if not hunk.actual:
        return found + [f"        -{visible(line, lines=True)}" for line in hunk.expected]
    found.append("        --- what the patch expects")
    found.append(f"        +++ what {tree} has from line {hunk.actual_at} on")
    compared = list(difflib.unified_diff(hunk.expected, hunk.actual, lineterm="", n=3))[2:]
    return found + [f"        {visible(line, lines=True)}" for line in compared]


# --- several releases -------------------------------------------------------------------------------------------------


def cell(verdict: Verdict) -> str:
    """One field of the matrix; in brackets where the patch is not for that release, and so is skipped."""
    short = _SHORT[verdict.measured] if verdict.measured else "?"
    return f"({short.lower()})" if verdict.state is State.OUT_OF_RANGE else short


def report_matrix(runs: Sequence[DryRun]) -> list[str]:
    """Releases down, patches across, and the last release that each patch fits."""
    names = [verdict.patch for verdict in runs[0].verdicts]
    found = [f"{runs[0].series}: {counted(len(names), 'patch', 'patches')}, {counted(len(runs), 'release')}"]
    found += [f"  [{number}] {name}" for number, name in enumerate(names, 1)]
    rows = [["", *(f"[{number}]" for number in range(1, len(names) + 1))]]
    rows += [[r.version, *(cell(verdict) for verdict in r.verdicts)] for r in runs]
    found += table(rows, indent="  ")
    if any(v.state is State.OUT_OF_RANGE for r in runs for v in r.verdicts):
        found.append("  (in brackets: not for that release, so a build leaves it out)")
    for number, (name, last) in enumerate(last_fits(runs).items(), 1):
        found.append(f"  [{number}] {name}: last fits {last}" if last else f"  [{number}] {name}: fits none of them")
    return found


def last_fits(runs: Sequence[DryRun]) -> dict[str, str]:
    """The newest of these releases that each patch fits, its range not considered."""
    found: dict[str, str] = {}
    for run in runs:
        for verdict in run.verdicts:
            fits = verdict.measured is not None and verdict.measured.fits
            found[verdict.patch] = run.version if fits else found.get(verdict.patch, "")
    return found


# --- for programs -----------------------------------------------------------------------------------------------------


def as_document(source: str, run: DryRun) -> dict[str, Any]:
    """One dry run with stable keys."""
    return {
        "source": source,
        "series": run.series,
        "tree": run.tree,
        "version": run.version or None,
        "ok": run.ok,
        "patches": [_verdict_document(verdict) for verdict in run.verdicts],
    }


def _verdict_document(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.patch,
        "path": verdict.path,
        "applies_to": verdict.applies_to or None,
        "state": verdict.state.value,
        "measured": verdict.measured.value if verdict.measured else None,
        "ok": verdict.ok,
        "reason": verdict.reason or None,
        "hunks": [
            {
                **{name: value for name, value in vars(hunk).items() if name not in ("number", "actual_at")},
                "hunk": hunk.number,
                "state": hunk.state.value,
                "expected": hunk.expected if hunk.state is State.CONFLICT else (),
                "actual_line": hunk.actual_at or None,
                "reason": hunk.reason or None,
            }
            for hunk in verdict.hunks
        ],
    }
