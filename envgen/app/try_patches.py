"""The dry run before a build: a patch that does not fit is found in seconds, before Docker has anything to do."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from envgen import files
from envgen.app.patch_sources import Sources, Target, targets_of
from envgen.errors import BuildError, EnvgenError, Problem
from envgen.lock.model import ProfileLock
from envgen.patches import report
from envgen.patches.dry_run import DryRun, State, dry_run
from envgen.patches.series import Series
from envgen.patches.trees import Tree
from envgen.profile.model import Profile, Source
from envgen.text import progress

# A source that takes longer to come is not worth waiting for: the build fetches and patches it anyway.
SECONDS = 60.0


@dataclass
class _Tried:
    """What came of all series. ``complete``: no source was left out, and none of them moves."""

    passed: list[DryRun] = field(default_factory=list)
    failed: list[DryRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    complete: bool = True


def try_patches(profile: Profile, root: Path, digest: str, lock: ProfileLock | None) -> None:
    """Hold each patched source's series against its bare source, and look there for what its build needs.

    Raises ``BuildError`` when a patch does not fit, or the script that prepares the source is not there.

    The source is the one that will be built: the commit in ``lock`` where there is one. ``digest`` is the render's,
    which covers patches, origins and commits: what passed once is not tried again. A branch without a locked commit
    moves, so it is tried every time. A source that can't be fetched is reported, and left to the build.
    """
    if not any(source.patches and source.origin.kind != "checkout" for source in profile.sources.values()):
        return
    # Not in the project: a commit could then switch the dry run off.
    record = files.cache_dir() / "tried-patches" / hashlib.sha256(f"1 {digest}".encode()).hexdigest()
    if record.is_file():
        for warning in files.read(record).decode("utf-8", "replace").splitlines():
            progress(warning)
        return
    started, found, sources = time.monotonic(), _Tried(), Sources(seconds=SECONDS, say=progress)
    for target in targets_of(profile, root, lock):
        _try(target, profile, sources, found)
    _refuse(found)
    for warning in found.warnings:
        progress(warning)
    if found.passed:
        progress(f"tried in {time.monotonic() - started:.1f} s: {'; '.join(map(_summary, found.passed))}")
    if found.complete:
        with contextlib.suppress(OSError):  # only a memory
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write(record, "\n".join(found.warnings).encode())


def _try(target: Target, profile: Profile, sources: Sources, found: _Tried) -> None:
    series = target.series()
    if not series.patches:
        found.warnings.append(f"note: {series.folder} has no patches, so {target.name} is built as it comes")
        return
    try:
        tree = sources.built(target)
        run = dry_run(tree, series)
        stops, notes = ([], []) if target.source.origin.wheel else examine(target.name, profile, tree)
    except EnvgenError as error:
        progress(f"{series.folder} is not tried: {error}")
        found.complete = False
        return
    (found.passed if run.ok else found.failed).append(run)
    found.warnings += _left_out(run, tree, series)
    found.problems += stops
    for note in notes:
        progress(f"note: {note}")
    found.complete = found.complete and bool(target.version or target.commit)


def _refuse(found: _Tried) -> None:
    """BuildError where a build would stop."""
    for run in found.failed:
        progress(f"{run.series} does not fit {run.tree}:")
        for line in report.lines(run, only_bad=True):
            progress(line)
    if bad := [verdict for run in found.failed for verdict in run.verdicts if not verdict.ok]:
        names = ", ".join(f"{verdict.path} ({verdict.state.value})" for verdict in bad)
        raise BuildError(
            f"patches do not fit, so nothing was built: {names}", hint="`envgen patch check` shows it again"
        )
    if found.problems:
        refused = BuildError("nothing was built")
        refused.problems = (Problem("nothing was built:"), *found.problems)
        raise refused


def _left_out(run: DryRun, tree: Tree, series: Series) -> list[str]:
    """A line for each patch that is not for this version: a new version must not lose one without a word."""
    if all(verdict.state is not State.OUT_OF_RANGE for verdict in run.verdicts):
        return []
    lines = []
    for verdict in dry_run(tree, series, beyond_range=True).verdicts:
        if verdict.state is State.OUT_OF_RANGE and verdict.measured is not None:
            fits, how = verdict.measured.fits, verdict.measured.value
            would = f"it would still fit ({how}): widen its Applies-To" if fits else f"it would not fit ({how})"
            left = f"warning: {verdict.path} is left out: it is for {verdict.applies_to}, not {run.version}"
            lines.append(f"{left}; {would}")
    return lines


def _summary(run: DryRun) -> str:
    fitting = sum(verdict.state.fits for verdict in run.verdicts)
    skipped = len(run.verdicts) - fitting
    words = f"{fitting} patch{'es' * (fitting != 1)} fit{'s' * (fitting == 1)} {run.tree}"
    return words + (f" ({skipped} skipped, not for this version)" if skipped else "")


PYPROJECT = "pyproject.toml"
_SECTION = re.compile(r"^\[build-system\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_REQUIRES = re.compile(r"^requires\s*=\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", re.MULTILINE)
_ITEM = re.compile(r"([\"'])\s*([A-Za-z0-9][A-Za-z0-9._-]*).*?\1")


def build_requires(pyproject: str) -> list[str]:
    """The names in ``[build-system] requires``. (No TOML reader is in Python 3.10.)"""
    section = _SECTION.search(pyproject)
    listed = _REQUIRES.search(section[1]) if section else None
    return [canonicalize_name(name) for _, name in _ITEM.findall(listed[1])] if listed else []


def unnamed(profile: Profile, source: Source, pyproject: str) -> list[str]:
    """The packages that the source's build asks for, and nothing in the profile installs or protects."""
    given = (*source.install.requires, *profile.pip.protect, *profile.pip.deps, *profile.pip.tools, "pip", "torch")
    names = {canonicalize_name(match[0]) for text in given if (match := re.match(r"[A-Za-z0-9._-]+", text))}
    return [name for name in dict.fromkeys(build_requires(pyproject)) if name not in names]


def script_of(source: Source) -> str:
    """The file of the source that ``install.prepare`` runs; "" where it runs something else."""
    words = source.install.prepare
    interpreted = len(words) > 1 and re.fullmatch(r"(?:ba)?sh|python[0-9.]*", PurePosixPath(words[0]).name) is not None
    return words[1].removeprefix("./") if interpreted and not words[1].startswith(("-", "/")) else ""


def examine(name: str, profile: Profile, tree: Tree) -> tuple[list[Problem], list[str]]:
    """(what certainly stops the build, what may stop it) of one source; patches are not considered."""
    source = profile.sources[name]
    script = script_of(source)
    there = tree.read({PYPROJECT, script} if script else {PYPROJECT})
    problems, notes = list[Problem](), list[str]()
    if script and script not in there:
        moved = sorted(one for one in tree.names() if PurePosixPath(one).name == PurePosixPath(script).name)
        words = ", ".join((source.install.prepare[0], *moved[:1], *source.install.prepare[2:]))
        hint = f"sources: {{{name}: {{install: {{prepare: [{words}]}}}}}}" if moved else "take install.prepare out"
        problems.append(Problem(f"{tree.label} has no {script}, which sources.{name}.install.prepare runs", hint=hint))
    if PYPROJECT in there:
        missing = unnamed(profile, source, there[PYPROJECT].data.decode("utf-8", "replace"))
        if missing:
            wanted, place = ", ".join(missing), f"sources.{name}.install.requires"
            notes.append(
                f"the build of {tree.label} asks for {wanted}: name it in {place}, or have it in the base image"
            )
    return problems, notes
