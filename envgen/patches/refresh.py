"""Carry a series to another version by git's own three-way merge, in a throw-away repository."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from envgen.patches.checkout import as_left, commit_all
from envgen.patches.git import Git
from envgen.patches.header import head_of, in_range
from envgen.patches.rehearse import APPLY
from envgen.patches.series import Patch, Series
from envgen.patches.trees import Tree, put


class Outcome(Enum):
    """What became of a patch."""

    SAME = "fits as it is"
    CARRIED = "carried over"
    GONE = "already in the new version"
    CONFLICT = "conflict"
    SKIPPED = "not for the old version, left alone"


@dataclass(frozen=True)
class Refreshed:
    """One patch: its new diff (without the head), or the files with both sides marked."""

    patch: Patch
    outcome: Outcome
    content: bytes = b""
    conflicts: tuple[tuple[str, str], ...] = ()  # (file, text with git's markers)


def refresh(git: Git, series: Series, old: Tree, new: Tree) -> list[Refreshed]:
    """Each patch as a commit on the old files, then cherry-picked onto the new ones. Writes nothing outside."""
    names = {name for patch in series.patches for name in patch.touches}
    with tempfile.TemporaryDirectory(prefix="envgen-refresh-") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        put(folder, old.read(names))
        base = commit_all(git, folder, first=True)
        commits: dict[str, str] = {}
        for patch in series.patches:
            if in_range(patch.header.applies_to, old.version):
                if git([*APPLY, "-"], cwd=folder, stdin=patch.content, check=False).code:
                    raise as_left(patch)
                commits[patch.name] = commit_all(git, folder)
        git(["checkout", "--quiet", "--detach", base], cwd=folder)
        git(["rm", "--quiet", "-r", "--ignore-unmatch", "."], cwd=folder)
        folder.mkdir(exist_ok=True)
        put(folder, new.read(names))
        commit_all(git, folder)
        return [_carry(git, folder, patch, commits.get(patch.name)) for patch in series.patches]


def _carry(git: Git, folder: Path, patch: Patch, commit: str | None) -> Refreshed:
    if commit is None:
        return Refreshed(patch, Outcome.SKIPPED)
    options = ["--allow-empty", "--keep-redundant-commits"]
    picked = git(["-c", "merge.conflictStyle=diff3", "cherry-pick", *options, commit], cwd=folder, check=False)
    if picked.code:
        files = git(["diff", "--name-only", "-z", "--diff-filter=U"], cwd=folder).text.rstrip("\0").split("\0")
        conflicts = tuple((name, _marked(folder / name)) for name in files if name)
        git(["reset", "--quiet", "--hard", "HEAD"], cwd=folder)
        git(["cherry-pick", "--quit"], cwd=folder, check=False)
        return Refreshed(patch, Outcome.CONFLICT, conflicts=conflicts or ((patch.path, picked.stderr),))
    diff = git(["-c", "core.abbrev=12", "diff", "--no-color", "--no-ext-diff", "HEAD~1", "HEAD"], cwd=folder).stdout
    if not diff:
        return Refreshed(patch, Outcome.GONE)
    same = diff == patch.content[len(head_of(patch.content)) :]
    return Refreshed(patch, Outcome.SAME if same else Outcome.CARRIED, diff)


def _marked(path: Path) -> str:
    """The stretches of a file between git's conflict markers."""
    if not path.is_file():
        return "the new version has no such file"
    inside, kept = False, []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.startswith("<<<<<<< "):
            inside = True
            kept.append(f"line {number}:")
        if inside:
            kept.append(line)
        if line.startswith(">>>>>>> "):
            inside = False
    return "\n".join(kept)
