"""What tells two copies of a project on one engine apart: a short name that containers, images and overlays carry.

`envgen.local.yaml` may give it; a linked git worktree has one by itself, a main checkout none.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from envgen import files

LENGTH = 40


def of_worktree(folder: Path) -> str:
    """The name of the linked git worktree that ``folder`` is in, as git itself calls it; "" elsewhere.

    Git keeps that name when the worktree moves.
    """
    for place in (folder, *folder.parents):
        mark = place / ".git"
        if mark.is_file():
            return _linked(mark)
        if mark.exists():
            return ""
    return ""


def as_instance(text: str) -> str:
    """``text`` as Docker's names take it: small letters and digits, dashes between them."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LENGTH].strip("-")
    return found or hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _linked(mark: Path) -> str:
    try:
        words = files.read(mark, limit=1 << 16).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    _, found, path = words.partition("gitdir:")
    git_dir = mark.parent / path.strip()
    # A submodule's folder has a file `.git`, too; only a worktree's directory leads to a common one.
    return as_instance(git_dir.name) if found and path.strip() and (git_dir / "commondir").is_file() else ""
