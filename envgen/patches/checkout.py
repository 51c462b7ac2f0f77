"""Patches and a mounted checkout: apply, take back, make a new one. All or nothing; no branch or index is touched.

What is in is written beside git's own data (``.git/envgen-patches.json``), with the hash of the tree that came out:
only exactly that is ever taken back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envgen.errors import EnvgenError, RefusedError, UsageError
from envgen.patches.git import Git
from envgen.patches.header import version_of_ref
from envgen.patches.rehearse import APPLY, compiles
from envgen.patches.series import Patch, Series
from envgen.patches.trees import GitTree, put

MANIFEST = "envgen-patches.json"
_LEFTOVERS = (".rej", ".orig")


@dataclass(frozen=True)
class Manifest:
    """Which patches are in a checkout, on top of which commit, and the tree that came out."""

    series: str
    base: str
    tree: str
    patches: tuple[dict[str, str], ...]


class Checkout:
    """A git checkout on this machine."""

    def __init__(self, git: Git, folder: Path) -> None:
        self._git = git
        self.folder = folder.resolve()
        answer = git(["rev-parse", "--show-toplevel"], cwd=self.folder, check=False)
        if answer.code:
            raise UsageError(f"{folder} is no git checkout")
        if Path(answer.text).resolve() != self.folder:
            raise UsageError(f"{folder} lies inside of the checkout {answer.text}", hint="name that one")
        head = git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], cwd=self.folder, check=False)
        if head.code:
            raise UsageError(f"{folder} has no commit yet")
        self.head = head.text

    @property
    def version(self) -> str:
        """The release that HEAD is tagged as, or nothing."""
        tags = self._git(["tag", "--points-at", "HEAD"], cwd=self.folder).text.split()
        return next((version for version in map(version_of_ref, tags) if version), "")

    def bare(self) -> GitTree:
        """The commit without any local change."""
        return GitTree(self._git, self.folder, self.head, f"HEAD of {self.folder.name}", self.version)

    def manifest(self) -> Manifest | None:
        """What was applied here, as long as it is still what HEAD carries."""
        try:
            found = json.loads(self._manifest_file().read_text(encoding="utf-8"))
            manifest = Manifest(found["series"], found["base"], found["tree"], tuple(found["patches"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return manifest if manifest.base == self.head else None

    def apply(self, series: Series) -> Manifest:
        """Apply a series that was rehearsed on ``bare()``. Raises ``RefusedError`` with nothing changed."""
        self._must_be_clean()
        touched = sorted({name for patch in series.patches for name in patch.touches})
        combined = self._combined(series)
        self._git([*APPLY, "--check", "-"], cwd=self.folder, stdin=combined)
        self._git([*APPLY, "-"], cwd=self.folder, stdin=combined)
        broken = [name for name in touched if name.endswith(".py") and not compiles(self.folder / name)]
        left = [n + end for n in touched for end in _LEFTOVERS if (self.folder / (n + end)).exists()]
        if broken or left:
            self._git([*APPLY, "-R", "-"], cwd=self.folder, stdin=combined)
            raise RefusedError(
                f"taken back: {(broken or left)[0]} {'does not compile' if broken else 'was left behind'}"
            )
        patches = tuple({"name": p.name, "sha256": hashlib.sha256(p.content).hexdigest()} for p in series.patches)
        manifest = Manifest(series.folder, self.head, self.tree(touched), patches)
        text = json.dumps({"format": 1, "touched": touched, **asdict(manifest)}, indent=1, sort_keys=True)
        self._manifest_file().write_text(text + "\n", encoding="utf-8")
        return manifest

    def reverse(self) -> Manifest:
        """Take back what ``apply`` did, if the checkout is exactly as it left it."""
        manifest = self.manifest()
        if manifest is None:
            raise RefusedError(f"no patches of envgen are in {self.folder}, or HEAD has moved since")
        touched = json.loads(self._manifest_file().read_text(encoding="utf-8")).get("touched", [])
        if self.tree([str(name) for name in touched]) != manifest.tree:
            changed = self._git(["diff", "--name-only", manifest.tree], cwd=self.folder).text.split("\n")
            hint = f"changed since: {', '.join(changed[:3])}; keep that first (envgen patch new), then undo it"
            raise RefusedError(f"{self.folder} is not as the patches left it", hint=hint)
        combined = self._git(["diff", "--binary", "--full-index", self.head, manifest.tree], cwd=self.folder).stdout
        self._git([*APPLY, "-R", "--check", "-"], cwd=self.folder, stdin=combined)
        self._git([*APPLY, "-R", "-"], cwd=self.folder, stdin=combined)
        self._manifest_file().unlink()
        return manifest

    def changes(self, only: Sequence[str] = ()) -> bytes:
        """What was changed here since HEAD, or since the patches that are in: a diff, new files included."""
        manifest = self.manifest()
        base = manifest.tree if manifest and self.dirty() else self.head  # clean: somebody undid the patches by hand
        now = self.tree(only or ["."], untracked=True)
        paths = ["--", *(f":(top,literal){path}" for path in only)] if only else []
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "--binary", "-M"]
        return self._git(["diff", *options, base, now, *paths], cwd=self.folder).stdout

    def tree(self, paths: Sequence[str] = (), *, untracked: bool = False) -> str:
        """The hash of the work tree as it is now, through an index of our own: tracked files, and ``paths``."""
        index = Path(self._git(["rev-parse", "--absolute-git-dir"], cwd=self.folder).text, "index")
        with tempfile.TemporaryDirectory(prefix="envgen-index-") as folder:
            own = Path(folder, "index")
            if index.is_file():
                shutil.copyfile(index, own)  # what it knows of times and sizes saves reading every file
            env = {"GIT_INDEX_FILE": str(own)}
            if not index.is_file():
                self._git(["read-tree", "HEAD"], cwd=self.folder, env=env)
            self._git(["add", "--update", "--", "."], cwd=self.folder, env=env)
            there = [path for path in paths if (self.folder / path).exists()]
            if untracked:
                self._git(["add", "--all", "--", *there], cwd=self.folder, env=env)
            elif there:
                self._git(["add", "--force", "--", *there], cwd=self.folder, env=env)
            return self._git(["write-tree"], cwd=self.folder, env=env).text

    def _must_be_clean(self) -> None:
        if self.manifest() is not None and self.dirty():
            raise RefusedError("patches are in this checkout already", hint="take them back with --reverse first")
        changed = self.dirty()
        if changed:
            shown = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
            raise RefusedError(f"{self.folder} has changes of yours: {shown}", hint="commit or undo them first")

    def dirty(self) -> list[str]:
        """Tracked files that differ from HEAD, in the work tree or the index."""
        return self._git(["diff", "--name-only", "HEAD", "--"], cwd=self.folder).text.split()

    def _combined(self, series: Series) -> bytes:
        """One diff for the whole series, so that git changes all files or none."""
        names = {name for patch in series.patches for name in patch.touches}
        with tempfile.TemporaryDirectory(prefix="envgen-patches-") as scratch:
            folder = Path(scratch, "source")
            folder.mkdir()
            put(folder, self.bare().read(names))
            commit_all(self._git, folder, first=True)
            for patch in series.patches:
                self._git([*APPLY, "-"], cwd=folder, stdin=patch.content)
            self._git(["add", "--all", "--force"], cwd=folder)
            return self._git(["diff", "--cached", "--binary", "--full-index", "HEAD"], cwd=folder).stdout

    def _manifest_file(self) -> Path:
        return Path(self._git(["rev-parse", "--absolute-git-dir"], cwd=self.folder).text, MANIFEST)


def commit_all(git: Git, folder: Path, *, first: bool = False) -> str:
    """Commit all that lies in a folder of ours, and return the commit."""
    if first:
        git(["init", "--quiet", "--template=", "--initial-branch=main"], cwd=folder)
    git(["add", "--all", "--force"], cwd=folder)
    git(["commit", "--quiet", "--allow-empty", "--no-verify", "--message=envgen"], cwd=folder)
    return git(["rev-parse", "HEAD"], cwd=folder).text


def as_left(patch: Patch) -> EnvgenError:
    """The error for a patch that does not even fit what it was made for."""
    return RefusedError(f"{patch.path} does not fit the version that it is carried from", hint="name it with --from")
