"""Carry a series to another version by git's own three-way merge, in a throw-away repository."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from envgen import files
from envgen.engine.git import git
from envgen.patches.checkout import as_left, commit_all
from envgen.patches.dry_run import APPLY
from envgen.patches.header import head_of, in_range
from envgen.patches.series import Patch, Series
from envgen.patches.trees import Tree, put

MOST_SUCCESSORS = 60  # for one vanished file; each has to be fetched where the source is a git server


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
    moved: tuple[str, ...] = ()  # the new names of files that the patch knew by others


def refresh(series: Series, old: Tree, new: Tree) -> list[Refreshed]:
    """Each patch as a commit on the old files, then cherry-picked onto the new ones. Writes nothing outside."""
    names = {name for patch in series.patches for name in patch.touches}
    with files.Scratch("refresh") as scratch:
        folder = Path(scratch, "source")
        folder.mkdir()
        before = old.read(names)
        put(folder, before)
        base = commit_all(folder, first=True)
        commits: dict[str, str] = {}
        for patch in series.patches:
            if in_range(patch.header.applies_to, old.version):
                if git([*APPLY, "-"], cwd=folder, stdin=patch.content, check=False).code:
                    raise as_left(patch)
                commits[patch.name] = commit_all(folder)
        git(["checkout", "--quiet", "--detach", base], cwd=folder)
        git(["rm", "--quiet", "-r", "--ignore-unmatch", "."], cwd=folder)
        folder.mkdir(exist_ok=True)
        after = new.read(names)
        gone = set(before).difference(after)
        put(folder, {**after, **(new.read(successors(gone, old.names(), new.names())) if gone else {})})
        commit_all(folder)
        return [_carry(folder, patch, commits.get(patch.name)) for patch in series.patches]


def successors(gone: Collection[str], old: Collection[str], new: Collection[str]) -> list[str]:
    """Files that a vanished one may have become: git compares contents, but only of files that it is shown.

    Those that are new and of the same kind; first the ones of the same name, then those of the same folder.
    """
    fresh = sorted(set(new).difference(old))
    found: set[str] = set()
    for name in gone:
        path = PurePosixPath(name)
        alike = [PurePosixPath(other) for other in fresh if PurePosixPath(other).suffix == path.suffix]
        common = {other: len(set(other.parts).intersection(path.parts)) for other in alike}
        alike.sort(key=lambda other: (other.name != path.name, other.parent != path.parent, -common[other], str(other)))
        found.update(str(other) for other in alike[:MOST_SUCCESSORS])
    return sorted(found)


def _carry(folder: Path, patch: Patch, commit: str | None) -> Refreshed:
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
    names = git(["diff", "--name-only", "--no-renames", "-z", "HEAD~1", "HEAD"], cwd=folder).text.split("\0")
    moved = tuple(name for name in names if name and name not in patch.touches)
    same = diff == patch.content[len(head_of(patch.content)) :]
    return Refreshed(patch, Outcome.SAME if same else Outcome.CARRIED, diff, moved=moved)


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
