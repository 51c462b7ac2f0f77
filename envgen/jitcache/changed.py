"""Which files of a mounted checkout are not those of a revision, as a container sees them."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

from envgen.errors import UsageError

if TYPE_CHECKING:
    from envgen.profile.model import Profile

SOURCE = "flashinfer"


def changed_files(profile: Profile, root: Path, revision: str) -> tuple[str, ...]:
    """Paths in the container of all that differs: edited, added, deleted, not yet known to git; in submodules too.

    A submodule that stands at another commit counts as a whole folder.
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
    if revision.startswith("-"):
        raise UsageError(f"{revision!r} is no revision")
    names = _differing(folder, revision)
    return tuple(posixpath.join(source.mount.path, name) for name in names)


def _differing(folder: Path, revision: str) -> list[str]:
    from envgen.engine.git import git

    known = git(["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], cwd=folder, check=False)
    if known.code:
        raise UsageError(f"{folder} has no revision {revision!r}", hint="name a branch, tag or commit of that checkout")
    # Not --submodule=diff: it prints patches. A submodule with edited files shows as its own folder here.
    tracked = git(["diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", revision, "--"], cwd=folder)
    fresh = git(["ls-files", "--others", "--exclude-standard", "-z"], cwd=folder)
    found: list[str] = []
    for raw in (tracked.stdout + fresh.stdout).split(b"\0"):
        name = os.fsdecode(raw)
        if not name:
            continue
        inner = folder / name
        if inner.is_dir() and (inner / ".git").exists():
            found += _in_submodule(folder, name, revision)
        else:
            found.append(name)
    return sorted(set(found))


def _in_submodule(folder: Path, name: str, revision: str) -> list[str]:
    """Files below the submodule, where it was at a commit that it still has; else the whole of it."""
    from envgen.engine.git import git

    then = git(["rev-parse", "--verify", "--quiet", f"{revision}:{name}"], cwd=folder, check=False)
    if then.code:
        return [name]
    try:
        return [posixpath.join(name, path) for path in _differing(folder / name, then.text.strip())]
    except UsageError:
        return [name]
