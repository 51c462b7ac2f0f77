"""What a lock must hold, and what a build demands of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envgen.lock.ask import patched
from envgen.lock.model import PatchLock
from envgen.patches.series import load_series
from envgen.profile.model import Profile


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
