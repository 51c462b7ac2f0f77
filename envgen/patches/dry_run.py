"""Tries series against their sources, in a temporary folder, with `git apply`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from envgen import files
from envgen.binding import JsonDict
from envgen.engine.git import GitOutput, git
from envgen.patches.series import Patch, Series
from envgen.patches.source import Tree, put
from envgen.patches.wheel import File, WheelTree
from envgen.text import visible


class State(str, Enum):
    """The result of one patch on one source."""

    FITS = "fits"
    ALREADY = "already applied"
    CONFLICT = "does not fit"
    LACKING = "not in the wheel"
    OUT_OF_RANGE = "out of range"


@dataclass(frozen=True)
class PatchVerdict:
    """One patch on one source. ``messages``: of git. ``ok`` is False where a build would fail."""

    name: str
    path: str
    applies_to: str
    state: State
    messages: tuple[str, ...] = ()
    mounted: bool = False  # in a checkout that has it

    @property
    def ok(self) -> bool:
        return self.mounted or self.state in (State.FITS, State.OUT_OF_RANGE)


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


def dry_run(tree: Tree, series: Series, *, mounted: bool = False) -> DryRun:
    """Try each patch of a series that is for the version of ``tree``, in order, on top of those
    before it that fit.

    ``mounted``: a checkout may have them already.
    """
    wanted = series.for_version(tree.version)
    touched = set[str]()
    for patch in wanted.patches:
        touched.update(patch.touches)
    states = _tried(tree.read(touched), wanted)
    if isinstance(tree, WheelTree):
        for patch in wanted.patches:
            lacking = tuple(tree.lacking(patch))
            if lacking:
                states[patch.name] = State.LACKING, lacking
    verdicts = []
    for patch in series.patches:
        state, messages = states.get(patch.name, (State.OUT_OF_RANGE, ()))
        has = mounted and state is State.ALREADY
        verdict = PatchVerdict(patch.name, patch.path, patch.applies_to, state, messages, has)
        verdicts.append(verdict)
    return DryRun(series.folder, tree.label, tree.version, tuple(verdicts))


def _tried(code: Mapping[str, File], series: Series) -> dict[str, tuple[State, tuple[str, ...]]]:
    """Patch -> its state, and git's messages. One that fits stays applied, for the patches after
    it.
    """
    states = {}
    with files.Scratch("patches") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        put(folder, code)
        for patch in series.patches:
            states[patch.name] = _state(folder, patch)
    return states


def _state(folder: Path, patch: Patch) -> tuple[State, tuple[str, ...]]:
    applied = apply(folder, patch.content)
    if applied.code == 0:
        return State.FITS, ()
    reversed_ = apply(folder, patch.content, "--check", "-R")
    if reversed_.code == 0:
        return State.ALREADY, ()
    messages = []
    for line in applied.stderr.splitlines():
        if line.strip():
            messages.append(line.removeprefix("error: "))
    return State.CONFLICT, tuple(messages)


def apply(folder: Path, content: bytes, *options: str) -> GitOutput:
    """Run ``git apply`` in a temporary folder. In a repository around it, git would skip the files
    in silence.
    """
    words = [*APPLY, *options, "-"]
    env = {"GIT_DIR": os.devnull}
    return git(words, cwd=folder, env=env, stdin=content, check=False)


# --- verdicts as text and as JSON -----------------------------------------------------------

_CURES = {
    State.ALREADY: "the source has it: narrow its Applies-To, or delete it and its line in the series",
    State.CONFLICT: "docs/lock.md: carry a patch to another version; or narrow its Applies-To",
    State.LACKING: "a profile that compiles the source takes it (docs/lock.md); or leave these files out of the patch",
}


def report_lines(run: DryRun) -> list[str]:
    """The text for one source: a line per patch, and git's messages where one does not fit."""
    lines = [f"{run.tree} ({run.series})"]
    for verdict in run.verdicts:
        mark = "ok " if verdict.ok else "BAD"
        line = f"  {mark} {verdict.name}: {verdict.state.value}"
        if verdict.state is State.OUT_OF_RANGE:
            line += f", skipped (it is for {verdict.applies_to})"
        lines.append(line)
        if not verdict.ok:
            lines += [f"        {visible(line)}" for line in verdict.messages]
            lines.append(f"      hint: {_CURES[verdict.state]}")
    return lines


def as_document(source: str, run: DryRun) -> JsonDict:
    """One dry run, for --json."""
    return {
        "source": source,
        "series": run.series,
        "tree": run.tree,
        "version": run.version,
        "ok": run.ok,
        "patches": [{**asdict(one), "ok": one.ok} for one in run.verdicts],
    }


def summary(run: DryRun) -> str:
    """One line about a series that fits."""
    fitting = sum(verdict.state is State.FITS for verdict in run.verdicts)
    skipped = len(run.verdicts) - fitting
    words = f"{fitting} patch{'es' * (fitting != 1)} fit{'s' * (fitting == 1)} {run.tree}"
    return words + (f" ({skipped} skipped, not for this version)" if skipped else "")
