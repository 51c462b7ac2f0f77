"""Tries a series against the files of a source, in a temporary folder, with `git apply`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine.git import GitRepository, git
from envgen.errors import EnvgenError
from envgen.patches.series import Patch, Series, in_range
from envgen.text import visible


@dataclass(frozen=True)
class File:
    """One file of a source."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class GitTree:
    """A commit in a repository on this machine."""

    repository: GitRepository
    commit: str
    label: str
    version: str = ""

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files of the commit; the work tree does not count."""
        found: dict[str, File] = {}
        for name in sorted(names):
            listed = self.repository.git(["ls-tree", "-z", self.commit, "--", f":(literal){name}"]).text
            if not listed.rstrip("\0"):
                continue
            mode, kind, blob = listed.partition("\t")[0].split(" ")
            if kind == "tree":
                continue
            if mode not in ("100644", "100755"):
                raise EnvgenError(f"{name} is not a plain file in {self.label}, so no patch may touch it")
            data = self.repository.git(["cat-file", "blob", blob], timeout=120).stdout
            found[name] = File(data, mode == "100755")
        return found

    def names(self) -> set[str]:
        """All plain files of the commit."""
        listed = self.repository.git(["ls-tree", "-r", "-z", self.commit], timeout=300).text
        lines = [line.partition("\t") for line in listed.split("\0") if line]
        return {name for head, _, name in lines if head.startswith("100")}


def put(folder: Path, files: dict[str, File]) -> None:
    """Write files below a temporary folder. ``read_patch`` has checked the names."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


class State(str, Enum):
    """The result of one patch on one source."""

    FITS = "fits"
    ALREADY = "already applied"
    CONFLICT = "does not fit"
    OUT_OF_RANGE = "out of range"


@dataclass(frozen=True)
class PatchVerdict:
    """One patch on one source. ``measured``: the state without its range; ``messages``: of git.

    ``ok`` is False where a build would fail.
    """

    name: str
    path: str
    applies_to: str
    state: State
    measured: State | None
    messages: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.state in (State.FITS, State.OUT_OF_RANGE)


@dataclass(frozen=True)
class DryRun:
    """A whole series on one source."""

    series: str
    tree: str
    version: str
    verdicts: tuple[PatchVerdict, ...]

    @property
    def ok(self) -> bool:
        """False where a build would fail."""
        return all(verdict.ok for verdict in self.verdicts)


APPLY = ("apply", "--whitespace=nowarn")


def dry_run(tree: GitTree, series: Series, *, beyond_range: bool = False) -> DryRun:
    """Try each patch of a series, in order, on top of those before it that fit.

    ``beyond_range``: also try patches that are not for this version; their state stays "out of range".
    """
    verdicts = []
    with files.Scratch("patches") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        put(folder, tree.read({name for patch in series.patches for name in patch.touches}))
        for patch in series.patches:
            inside = in_range(patch.header.applies_to, tree.version)
            state, messages = _tried(folder, patch) if inside or beyond_range else (None, ())
            now = state if inside and state else State.OUT_OF_RANGE
            verdicts.append(PatchVerdict(patch.name, patch.path, patch.header.applies_to, now, state, messages))
    return DryRun(series.folder, tree.label, tree.version, tuple(verdicts))


def _tried(folder: Path, patch: Patch) -> tuple[State, tuple[str, ...]]:
    """The state of one patch, and git's messages. One that fits is applied, for the patches after it."""
    code, messages = _apply(folder, patch.content)
    if code == 0:
        return State.FITS, ()
    if _apply(folder, patch.content, "--check", "-R")[0] == 0:
        return State.ALREADY, ()
    return State.CONFLICT, tuple(line.removeprefix("error: ") for line in messages.splitlines() if line.strip())


def _apply(folder: Path, content: bytes, *options: str) -> tuple[int, str]:
    answer = git([*APPLY, *options, "-"], cwd=folder, stdin=content, check=False)
    return answer.code, answer.stderr


# --- verdicts as text and as JSON -----------------------------------------------------------

_CURES = {
    State.ALREADY: "the source has it: narrow its Applies-To, or delete it and its line in the series",
    State.CONFLICT: "docs/lock.md: carry a patch to another version; or narrow its Applies-To",
}


def report_lines(run: DryRun, *, only_bad: bool = False) -> list[str]:
    """The text for one source: a line per patch, and git's messages where one does not fit."""
    lines = [] if only_bad else [f"{run.tree} ({run.series})"]
    for verdict in run.verdicts:
        if only_bad and verdict.ok:
            continue
        skipped = f", skipped (it is for {verdict.applies_to})" if verdict.state is State.OUT_OF_RANGE else ""
        lines.append(f"  {'ok ' if verdict.ok else 'BAD'} {verdict.name}: {verdict.state.value}{skipped}")
        if not verdict.ok:
            lines += [f"        {visible(line)}" for line in verdict.messages]
            lines.append(f"      hint: {_CURES[verdict.state]}")
    return lines


def as_document(source: str, run: DryRun) -> dict[str, Any]:
    """One dry run, for --json."""
    verdicts = {"ok": run.ok, "patches": [{**asdict(one), "ok": one.ok} for one in run.verdicts]}
    return {"source": source, "series": run.series, "tree": run.tree, "version": run.version, **verdicts}
