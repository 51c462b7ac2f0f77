"""Which files of a mounted checkout are not those of a revision, as a container sees them."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from envgen.engine.git import WorkTree
from envgen.errors import UsageError
from envgen.profile.model import Profile

SOURCE = "flashinfer"


def changed_files(profile: Profile, root: Path, revision: str) -> tuple[str, ...]:
    """Paths in the container of all that differs: edited, added, deleted, not yet known to git; in submodules too.

    A submodule that is at another commit counts as a whole folder.
    """
    source = profile.sources.get(SOURCE)
    if source is None or source.origin.checkout is None:
        raise UsageError(
            f"--changed needs a mounted checkout, and profile {profile.name} has none for {SOURCE}",
            hint=f"set sources.{SOURCE}.origin to a checkout, or name the modules",
        )
    folder = Path(os.path.normpath(root / Path(source.origin.checkout.path).expanduser()))
    if not folder.is_dir():
        raise UsageError(f"the checkout {folder} is not there", hint=f"sources.{SOURCE}.origin.checkout names it")
    tree = WorkTree(folder)
    if not tree.commit(revision):
        raise UsageError(f"{folder} has no revision {revision!r}", hint="name a branch, tag or commit of that checkout")
    return tuple(posixpath.join(source.mount.path, name) for name in tree.differing(revision))
