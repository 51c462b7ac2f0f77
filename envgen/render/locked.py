"""Which lock belongs to a profile's image: the project's, or none for an image that was built with --unlocked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envgen.lock.ask import locked
from envgen.lock.model import ProfileLock
from envgen.lock.reading import load
from envgen.profile.model import Profile

LABEL = "dev.envgen.lock"


def lock_of(profile: Profile, root: Path) -> ProfileLock | None:
    """What envgen.lock says about ``profile``; None where there is no such file."""
    lock = load(root)
    return locked(profile, lock) if lock else None


def lock_of_image(profile: Profile, root: Path, labels: Mapping[str, str] | None) -> ProfileLock | None:
    """The lock to compare an image by. One that says itself that it was built without a lock is compared without."""
    return None if labels is not None and labels.get(LABEL) == "" else lock_of(profile, root)
