"""Patches and a mounted checkout: apply, take back, make a new one, carry to another version.

What is in is written beside git's own data (``.git/envgen-patches.json``), with the hash of the tree that came out:
only exactly that is ever taken back. The manifest is there before the first file changes: what a killed run left
is completed, or taken back, by the next one. All or nothing; no branch or index is touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath

from envgen import files
from envgen.binding import bind
from envgen.engine.git import WorkTree, git
from envgen.errors import EnvgenError, RefusedError, UsageError
from envgen.patches.dry_run import APPLY, GitTree, Tree, put
from envgen.patches.series import Patch, Series, in_range, version_of_ref, without_head

MANIFEST = "envgen-patches.json"
_FORMAT = 2
APPLIED, UNDERWAY = "applied", "under way"


@dataclass(frozen=True)
class Manifest:
    """Which patches are in a checkout, on top of which commit, and the tree that came out.

    ``state`` is "under way" while files change. ``diff`` is the whole change: git may drop objects that no ref names.
    """

    state: str
    series: str
    base: str
    tree: str
    diff: str
    touched: tuple[str, ...]
    patches: tuple[dict[str, str], ...]


class Checkout:
    """A git checkout on this machine."""

    def __init__(self, folder: Path) -> None:
        self._work = WorkTree(folder)
        self.folder = self._work.folder
        self.head = self._work.head
        if not self.head:
            raise UsageError(f"{folder} has no commit yet")
        self._manifest_file = self._work.git_dir / MANIFEST

    @property
    def version(self) -> str:
        """The release that HEAD is tagged as, or nothing."""
        tags = self._work.git(["tag", "--points-at", "HEAD"]).text.split()
        return next((version for version in map(version_of_ref, tags) if version), "")

    def bare(self) -> GitTree:
        """The commit without any local change."""
        return GitTree(self._work, self.head, f"HEAD of {self.folder.name}", self.version)

    def manifest(self) -> Manifest | None:
        """What was applied here, as long as it is still what HEAD carries. What a killed run left is settled first."""
        try:
            found = json.loads(files.read(self._manifest_file, follow=False))
            if found["format"] != _FORMAT:
                return None
            manifest = bind(Manifest, found)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if manifest.base != self.head or self._patched(manifest.diff) != manifest.tree:
            return None
        return manifest if manifest.state == APPLIED else self._settled(manifest)

    def apply(self, series: Series) -> Manifest:
        """Apply a series that fits ``bare()``. Raises ``RefusedError`` with nothing changed."""
        self._must_be_clean()
        manifest = self._planned(series)
        combined = manifest.diff.encode("utf-8", "surrogateescape")
        self._work.git([*APPLY, "--check", "-"], stdin=combined)
        self._write(manifest)
        self._work.git([*APPLY, "-"], stdin=combined)
        manifest = replace(manifest, state=APPLIED)
        self._write(manifest)
        return manifest

    def adopt(self, series: Series) -> None:
        """Record that ``series`` is in, if the files that it touches are what it makes of them.

        The next patch is then made from what comes after it.
        """
        try:
            manifest = self._planned(series)
        except EnvgenError:  # made on another version, with patches that do not fit this one
            return
        now = self._work.tree(manifest.touched)
        if self._blobs(now, manifest.touched) == self._blobs(manifest.tree, manifest.touched):
            self._write(replace(manifest, state=APPLIED))

    def _planned(self, series: Series) -> Manifest:
        """What applying ``series`` to HEAD gives."""
        touched = tuple(sorted({name for patch in series.patches for name in patch.touches}))
        diff = self._combined(series).decode("utf-8", "surrogateescape")
        patches = tuple({"name": p.name, "sha256": hashlib.sha256(p.content).hexdigest()} for p in series.patches)
        return Manifest(UNDERWAY, series.folder, self.head, self._patched(diff), diff, touched, patches)

    def reverse(self) -> Manifest:
        """Take back what ``apply`` did, if the checkout is exactly as it left it."""
        manifest = self.manifest()
        if manifest is None:
            raise RefusedError(f"no patches of envgen are in {self.folder}, or HEAD has moved since")
        if self._work.tree(manifest.touched) != manifest.tree:
            changed = self._work.edited(manifest.tree)
            hint = f"changed since: {', '.join(changed[:3])}; keep that first (envgen patch new), then undo it"
            raise RefusedError(f"{self.folder} is not as the patches left it", hint=hint)
        self._write(replace(manifest, state=UNDERWAY))
        self._restore(manifest)
        return manifest

    def changes(self) -> bytes:
        """What was changed here since HEAD, or since the patches that are in: a diff, new files included."""
        manifest = self.manifest()
        base = manifest.tree if manifest and self.dirty() else self.head  # clean: the patches were undone by hand
        now = self._work.tree([name for name in self._work.untracked() if not name.endswith("/")])
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "--binary", "-M"]
        return self._work.git(["diff", *options, base, now]).stdout

    def dirty(self) -> list[str]:
        """Tracked files that differ from HEAD, in the work tree or the index."""
        return self._work.edited("HEAD")

    def _must_be_clean(self) -> None:
        if self.manifest() is not None and self.dirty():
            raise RefusedError("patches are in this checkout already", hint="take them back with --reverse first")
        changed = self.dirty()
        if changed:
            shown = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
            raise RefusedError(f"{self.folder} has changes of yours: {shown}", hint="commit or undo them first")

    def _combined(self, series: Series) -> bytes:
        """One diff for the whole series."""
        names = {name for patch in series.patches for name in patch.touches}
        with files.Scratch("patches") as scratch:
            folder = Path(scratch, "source")
            folder.mkdir()
            put(folder, self.bare().read(names))
            commit_all(folder, first=True)
            for patch in series.patches:
                git([*APPLY, "-"], cwd=folder, stdin=patch.content)
            git(["add", "--all", "--force"], cwd=folder)
            return git(["diff", "--cached", "--binary", "--full-index", "HEAD"], cwd=folder).stdout

    def _patched(self, diff: str) -> str:
        """The tree of HEAD with a diff applied, or nothing where it does not fit."""
        with self._work.index("HEAD") as env:
            words = [*APPLY, "--cached", "--allow-empty", "-"]
            content = diff.encode("utf-8", "surrogateescape")
            if content.strip() and self._work.git(words, stdin=content, env=env, check=False).code:
                return ""
            return self._work.git(["write-tree"], env=env).text

    def _write(self, manifest: Manifest) -> None:
        for path in files.leftovers(self._work.git_dir):
            files.remove_leftover(path)
        text = json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1, sort_keys=True)
        files.write(self._manifest_file, f"{text}\n".encode())

    def _settled(self, manifest: Manifest) -> Manifest | None:
        """After a run that was killed: complete if all patches are in, else taken back."""
        if self._work.tree(manifest.touched) == manifest.tree:
            manifest = replace(manifest, state=APPLIED)
            self._write(manifest)
            return manifest
        self._restore(manifest)
        return None

    def _restore(self, manifest: Manifest) -> None:
        """Give each touched file the content that it has in HEAD. What neither the patches nor git wrote is refused."""
        before, after = self._blobs(manifest.base, manifest.touched), self._blobs(manifest.tree, manifest.touched)
        foreign = [name for name in manifest.touched if self._is_edited(name, before.get(name), after.get(name))]
        if foreign:
            raise RefusedError(
                f"patches were half applied to {self.folder}, and {', '.join(foreign[:3])} changed since",
                hint=f"keep your edit elsewhere, then: git -C {self.folder} checkout HEAD -- {foreign[0]}",
            )
        with self._work.index(manifest.base) as env:
            names = b"".join(os.fsencode(name) + b"\0" for name in before)
            self._work.git(["checkout-index", "--force", "-z", "--stdin"], stdin=names, env=env)
        for name in manifest.touched:
            if name not in before:
                self._remove(self.folder / name)
        self._manifest_file.unlink(missing_ok=True)

    def _blobs(self, tree: str, names: Sequence[str]) -> dict[str, str]:
        """name -> blob of those names that a tree has."""
        paths = [f":(top,literal){name}" for name in names]
        with self._work.index(tree) as env:
            staged = self._work.git(["ls-files", "--stage", "-z", "--", *paths], env=env).names if paths else []
        return {name: head.split()[1] for head, _, name in (entry.partition("\t") for entry in staged)}

    def _is_edited(self, name: str, before: str | None, after: str | None) -> bool:
        """Whether another program wrote a file: it is not the old one, nor the new one or a part of it."""
        path = self.folder / name
        if not os.path.lexists(path):
            return False
        if not stat.S_ISREG(path.lstat().st_mode):
            return True
        if self._work.git(["hash-object", "--", name]).text in (before, after):
            return False
        whole = self._work.git(["cat-file", "blob", after]).stdout if after else b""
        return not whole.startswith(files.read(path, follow=False))

    def _remove(self, path: Path) -> None:
        """Delete a file, and the folders that this leaves empty. No link is followed."""
        while path != self.folder:
            try:
                with files.folder(path.parent, self.folder, create=False) as directory:
                    if path.is_dir() and not path.is_symlink():
                        os.rmdir(path.name, dir_fd=directory)
                    else:
                        os.unlink(path.name, dir_fd=directory)
            except FileNotFoundError:
                pass
            except OSError:  # a folder with other files in it
                return
            path = path.parent


def commit_all(folder: Path, *, first: bool = False) -> str:
    """Commit all that is in a folder of ours, and return the commit."""
    if first:
        git(["init", "--quiet", "--template=", "--initial-branch=main"], cwd=folder)
    git(["add", "--all", "--force"], cwd=folder)
    git(["commit", "--quiet", "--allow-empty", "--no-verify", "--message=envgen"], cwd=folder)
    return git(["rev-parse", "HEAD"], cwd=folder).text


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
                    message = f"{patch.path} does not fit the version that it is carried from"
                    raise RefusedError(message, hint="name it with --from")
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
    same = diff == without_head(patch.content)
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
