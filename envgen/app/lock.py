"""envgen.lock: resolve it and check it. `build.py` requires it before a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.errors import LockError, Problem
from envgen.lock.ask import Stale, Upgrade, checked, locked, stale, unlocked_models
from envgen.lock.model import FILE_NAME, InputChange, Lock, changes, facts, load, save
from envgen.profile.load import Loaded, require_alone
from envgen.profile.model import Profile
from envgen.render.locking import left_out, series_of
from envgen.text import counted, progress

if TYPE_CHECKING:
    from envgen.lock.resolve import ResolveResult, Unresolved


@dataclass(frozen=True)
class Updated:
    """The result of `envgen lock`. ``first``: nothing was locked before. ``left``: models that were
    not pinned.
    """

    changes: Sequence[InputChange]
    notes: Sequence[str]
    written: bool
    first: bool
    left: Sequence[Problem] = ()


def check(session: Session, lock: Lock | None) -> dict[str, list[Stale]] | None:
    """Profile -> what is missing or has changed in the lock file, offline; None without one."""
    if lock is None:
        return None
    profiles = session.profiles(local=False)
    root = session.loaded(local=False).project.root
    lacking = {}
    for profile in profiles:
        own = locked(profile, lock)
        for line in left_out(profile, own, series_of(profile, root)):
            progress(f"note: {line}")
        lacking[profile.name] = [*stale(profile, own), *unlocked_models(profile, lock)]
    if lock.read:
        entries = counted(len(lock.read), "entry", "entries")
        progress(f"note: read elsewhere: {entries}; `envgen lock` asks their servers")
    return lacking


def update(session: Session, names: tuple[str, ...], *, upgrade: bool) -> Updated:
    """Resolve new inputs and those to upgrade, and write the lock file. LockError with all
    problems.

    Models that the hub does not answer for are in ``left`` of the result: no image depends on a
    model's revision.
    """
    profiles = session.profiles(local=False)
    loaded = session.loaded(local=False)
    root = loaded.project.root
    require_alone(loaded.project)
    old = load(root) or Lock()
    wanted = Upgrade(checked(names, profiles, old), upgrade and not names)
    outcome = resolve(session, profiles, old, wanted)
    left = []
    for profile in profiles:
        left += left_out(profile, locked(profile, outcome.lock), series_of(profile, root))
    for profile in profiles:
        for name, source in profile.sources.items():
            if source.origin.is_built and not source.install.requires:
                left.append(
                    f"{profile.name}: the build requirements of {name} are those of its pyproject.toml, and are not locked; "
                    f"sources.{name}.install.requires locks them"
                )
    for note in (*outcome.notes, *left):
        progress(f"note: {note}")
    if outcome.problems:
        progress(f"{FILE_NAME} was not written")
        raise LockError(problems=problems_of(loaded, [*outcome.problems, *outcome.left]))
    differences = changes(facts(old), facts(outcome.lock))
    written = save(root / FILE_NAME, outcome.lock)
    unpinned = problems_of(loaded, outcome.left)
    progress(
        f"wrote {FILE_NAME}: {counted(len(differences), 'input')}"
        if written
        else f"{FILE_NAME} is unchanged"
    )
    for problem in unpinned:
        progress(f"not pinned: {problem}")
    if unpinned:
        progress(
            "everything else is pinned, so builds work; run `envgen lock` again once the hub answers"
        )
    for other in loaded.project.profiles.values():  # a line of theirs has changed, too
        if other.name in old.python and stale(other, locked(other, outcome.lock)):
            progress(f"note: {other.name} is out of date in it: {other.lock_command}")
    return Updated(differences, outcome.notes, written, not old.images, unpinned)


def resolve(
    session: Session, profiles: Sequence[Profile], old: Lock, wanted: Upgrade
) -> ResolveResult:
    """The lock of the session's project, with ``profiles`` brought up to date; nothing is written."""
    from envgen.lock import resolve  # asks servers; a check asks none

    every = list(session.loaded(local=False).project.profiles.values())
    own = Deployment(session.profile(), session.loaded().project.root)  # with envgen.local.yaml
    return resolve.resolve(profiles, every, old, wanted, own.require_own_files())


def problems_of(loaded: Loaded, unresolved: Sequence[Unresolved]) -> list[Problem]:
    """Each problem once, with its place in the project file."""
    unique = {}
    for one in unresolved:
        problem = one.problem
        words = (problem.message, problem.hint)
        if words not in unique:
            place = problem.place or loaded.place_of(one.profile, one.key)
            unique[words] = replace(problem, place=place)
    return list(unique.values())
