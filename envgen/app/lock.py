"""envgen.lock: resolve it, check it, and require it before a build."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envgen.app.session import Session
from envgen.deployment import Deployment, missing_files
from envgen.engine.client import connect
from envgen.errors import LockError, Place, Problem, RefusedError
from envgen.files import state_dir
from envgen.lock.ask import Stale, Upgrade, checked, patched, python_sets, stale
from envgen.lock.model import (
    FILE_NAME,
    LOCAL,
    InputChange,
    Lock,
    PatchLock,
    changes,
    exclusive,
    facts,
    load,
    save,
)
from envgen.lock.resolve import CA, NETRC, WHEELHOUSE, Tools, Unresolved, resolve
from envgen.lock.servers import Git
from envgen.patches.series import Series, load_series
from envgen.profile.load import siblings
from envgen.profile.model import Mode, Profile
from envgen.text import progress


def patch_locks(profiles: list[Profile], root: Path) -> dict[str, tuple[PatchLock, ...]]:
    """Patch folder -> its patches now."""
    folders = sorted({folder for profile in profiles for folder in patched(profile).values()})
    return {folder: _locks_of(load_series(root, folder)) for folder in folders}


def _locks_of(series: Series) -> tuple[PatchLock, ...]:
    return tuple(PatchLock(one.name, hashlib.sha256(one.content).hexdigest()) for one in series.patches)


# --- `envgen lock` ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Updated:
    """The result of `envgen lock`.

    ``first``: nothing was locked before. ``left``: models that were not pinned. ``named``: the packages that the
    project file itself names; others are what these need.
    """

    changes: Sequence[InputChange]
    notes: Sequence[str]
    written: bool
    first: bool
    left: Sequence[Problem] = ()
    named: frozenset[str] = frozenset()


def check(session: Session) -> dict[str, list[Stale]] | None:
    """Profile -> what is missing or has changed, offline; None without a lock file."""
    profiles, _ = _profiles(session)
    root = session.loaded(local=False).project.root
    lock = load(root)
    patches = patch_locks(profiles, root)
    return {p.name: stale(p, lock, patches) for p in profiles} if lock else None


def update(session: Session, names: tuple[str, ...], *, upgrade: bool, offline: bool, dry_run: bool) -> Updated:
    """Resolve new inputs and those to upgrade, and write the lock file. LockError with all problems.

    Models that the hub does not answer for are in ``left`` of the result: no image depends on a model's revision.
    """
    profiles, every = _profiles(session)
    root = session.loaded(local=False).project.root
    with exclusive(state_dir(root, "state")):
        old = load(root) or Lock()
        wanted = Upgrade(checked(names, profiles, old), upgrade and not names)
        other = siblings(session.loaded(local=False).project)
        every += [profile for project in other.projects for profile in project.profiles.values()]
        outcome = resolve(profiles, every, old, patch_locks(profiles, root), wanted, _tools(session, offline))
        for note in outcome.notes:
            progress(f"note: {note}")
        if outcome.problems:
            progress("envgen.lock is unchanged")
            raise LockError(problems=_problems_of(session, [*outcome.problems, *outcome.left]))
        if any(vars(old)[part].keys() - kept.keys() for part, kept in vars(outcome.lock).items()):
            other.require_all()
        found = changes(facts(old), facts(outcome.lock))
        written = False if dry_run else save(root / FILE_NAME, outcome.lock)
    words = (word for profile in profiles for one in python_sets(profile) for word in one.words)
    named = frozenset(canonicalize_name(Requirement(word).name) for word in words)
    return Updated(found, outcome.notes, written, not old.images, _problems_of(session, outcome.left), named)


def _profiles(session: Session) -> tuple[list[Profile], list[Profile]]:
    """The chosen profiles, and all."""
    project = session.loaded(local=False).project
    every = list(project.profiles.values())
    return ([session.profile(local=False)] if session.profile_name else every), every


def place_of(session: Session, profile: str, key: str) -> Place | None:
    """The place of a key of a profile in the project file; None for a default."""
    node = session.loaded(local=False).trees.get(profile)
    for part in key.split(".") if key else ():
        node = node.items.get(part) if node is not None else None
    place = node.place() if node is not None and key else None
    return place if place and place.line else None


def _tools(session: Session, offline: bool) -> Tools:
    profile, root = session.profile(), session.loaded().project.root  # with envgen.local.yaml: files of this machine
    wanted = {CA: profile.network.ca_certificates, WHEELHOUSE: profile.build.wheelhouse, NETRC: profile.pip.netrc}
    if missing := tuple(missing_files(profile, root)):
        raise RefusedError(problems=missing)
    files = {to: str((root / Path(one.path).expanduser()).resolve()) for to, one in wanted.items() if one is not None}
    return Tools(connect, Git(progress), progress, files, offline)


def _problems_of(session: Session, found: Sequence[Unresolved]) -> list[Problem]:
    """Each problem once, with its place in the project file."""
    unique = {(one.problem.message, one.problem.hint): one for one in reversed(found)}
    return [
        replace(one.problem, place=one.problem.place or place_of(session, one.profile, one.key))
        for one in reversed(unique.values())
    ]


# --- before a build ---------------------------------------------------------------------------------------------------


def require_lock(deployment: Deployment) -> None:
    """RefusedError when a production build would differ from the lock; a development build prints warnings."""
    profile, lock = deployment.profile, deployment.lock
    production, unlocked = profile.mode is Mode.PRODUCTION, f"`envgen build {profile.chosen} --unlocked` takes none"
    found = problems(deployment)
    if not found:
        return
    if production:
        head = Problem(f"{profile.name} is a production profile, and the lock lacks some of its inputs:")
        # The committed files have the lock's versions, too.
        files = [profile.render_command] if (deployment.root / profile.dockerfile).exists() else []
        # Without it, a lock keeps the base that it has.
        lock_again = f"{profile.lock_command} --upgrade base" if _has_moved(deployment) else profile.lock_command
        chain = " && ".join([lock_again, *files, f"envgen build {profile.chosen}"])
        last = Problem("nothing was built", hint=f"{chain}; {unlocked}")
        raise RefusedError(problems=(head, *found, last))
    platform = _platform(deployment)
    if lock is not None and lock.python and platform not in lock.python:
        others = ", ".join(sorted(lock.python))
        message = f"envgen.lock has the packages of {profile.name} for {others}, but this image is for {platform}"
        raise RefusedError(message, hint=f"`{profile.lock_command}` adds those for {platform}; {unlocked}")
    if lock is None:
        progress(f"note: no envgen.lock; `{profile.lock_command}` makes this build repeatable")
        return
    for problem in found:
        progress(f"warning: envgen.lock: {problem.message}")


def _platform(deployment: Deployment) -> str:
    chosen = deployment.profile.base.platform
    return chosen.value if chosen else f"linux/{deployment.engine.info().arch}"


def problems(deployment: Deployment) -> list[Problem]:
    """What a build would need and the lock file lacks."""
    profile, lock, whole = deployment.profile, deployment.lock, deployment.lock_file
    if whole is None or lock is None:
        return [Problem("no envgen.lock")]
    patches = {folder: _locks_of(deployment.series[name]) for name, folder in patched(profile).items()}
    outdated = stale(profile, whole, patches, _platform(deployment), weights=False)
    found = [Problem(str(item)) for item in outdated]
    if lock.base and _has_moved(deployment):
        seen = "is missing" if deployment.engine.image(lock.base.name) is None else "has another ID"
        message = f"base: {lock.base.name} was built locally, and here it {seen}"
        found.append(Problem(message, hint=f"`{profile.lock_command} --upgrade base` locks the one on this engine"))
    return found


def _has_moved(deployment: Deployment) -> bool:
    """Whether the lock names a base image that was built on an engine, and this engine has another one."""
    base = deployment.lock.base if deployment.lock else None
    if base is None or base.resolved != LOCAL:
        return False
    image = deployment.engine.image(base.name)
    return image is None or image.id != base.digest
