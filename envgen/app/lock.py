"""What a lock must hold, and what a build demands of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envgen.engine.base import Engine
from envgen.errors import Problem, RefusedError
from envgen.lock.ask import patched, stale
from envgen.lock.model import LOCAL, PatchLock, ProfileLock
from envgen.lock.reading import load
from envgen.patches.series import load_series
from envgen.profile.model import Mode, Profile
from envgen.text import progress

_ARCHS = {"x86_64": "amd64", "aarch64": "arm64"}
_UNLOCKED = "`envgen build --unlocked` builds all the same"


def patch_locks(profiles: list[Profile], root: Path) -> dict[str, tuple[PatchLock, ...]]:
    """What lies in the patch folders now."""
    folders = sorted({folder for profile in profiles for folder in patched(profile).values()})
    return {
        folder: tuple(
            PatchLock(patch.name, hashlib.sha256(patch.content).hexdigest())
            for patch in load_series(root, folder).patches
        )
        for folder in folders
    }


# --- before a build ---------------------------------------------------------------------------------------------------


def demand(profile: Profile, root: Path, engine: Engine, lock: ProfileLock | None) -> None:
    """RefusedError when a production build would not be what the lock says; development gets warnings."""
    production = profile.mode is Mode.PRODUCTION
    problems = _problems(profile, root, engine, lock)
    if not problems:
        return
    if production:
        error = RefusedError(problems[0].message)
        error.problems = (
            Problem(f"{profile.name} is a production profile, and the lock does not hold all of its inputs:"),
            *problems,
            Problem("nothing was built", hint=f"run `envgen lock`; {_UNLOCKED}"),
        )
        raise error
    if lock is None:
        progress("note: there is no envgen.lock; `envgen lock` makes this build repeatable")
        return
    for problem in problems:
        progress(f"warning: envgen.lock: {problem.message}")


def _problems(profile: Profile, root: Path, engine: Engine, lock: ProfileLock | None) -> list[Problem]:
    whole = load(root)
    if whole is None or lock is None:
        return [Problem("there is no envgen.lock")]
    arch = engine.info().arch
    platform = profile.base.platform.value if profile.base.platform else f"linux/{_ARCHS.get(arch, arch)}"
    found = [Problem(str(each)) for each in stale(profile, whole, patch_locks([profile], root), platform)]
    if lock.base and lock.base.resolved == LOCAL:
        image = engine.image(lock.base.name)
        if image is None or image.id != lock.base.digest:
            seen = "is not there" if image is None else "is another one"
            message = f"base: {lock.base.name} was made on one machine, and here it {seen}"
            found.append(Problem(message, hint="`envgen lock --upgrade base` takes the one that is here"))
    return found
