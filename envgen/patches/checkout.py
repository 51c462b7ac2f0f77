"""Patches and a mounted checkout, by `git apply`: apply, reverse, make a new one. No branch or index is touched."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from envgen import files
from envgen.engine.git import WorkTree, git
from envgen.errors import EnvgenError, Place, ProjectError, RefusedError, UsageError
from envgen.patches.dry_run import APPLY, GitTree, put
from envgen.patches.series import Patch, Series, load_series, read_patch, strip, version_of_ref
from envgen.profile.model import Profile


def nearest_release(folder: Path) -> str:
    """The release of the nearest tag at or before HEAD, or nothing."""
    described = WorkTree(folder).git(["describe", "--tags", "--abbrev=0"], check=False)
    return version_of_ref(described.text.strip()) if described.code == 0 else ""


def lacking(profile: Profile, root: Path) -> dict[str, tuple[str, ...]]:
    """Mounted source -> the patches of its series that its checkout lacks. Nothing applies them there by itself.

    Asked of the files; a patch that is not for the checkout's nearest release is not missed. Of several patches to one
    file only the last one is asked about, as its lines may stand where those of the others stood.
    """
    found = {}
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        folder = root / Path(source.origin.checkout.path).expanduser()
        if source.patches and folder.is_dir():
            with contextlib.suppress(EnvgenError, OSError):  # of an unreadable series `envgen patch list` says why
                series = load_series(root, source.patches).for_version(nearest_release(folder))
                if missed := _missed(folder, series):
                    found[name] = missed
    return found


def _missed(folder: Path, series: Series) -> tuple[str, ...]:
    last: dict[str, tuple[str, list[str]]] = {}
    for patch in series.patches:
        last.update({file: (patch.name, blocks) for file, blocks in added(patch.content, patch.name).items()})
    missed = set()
    for file, (name, blocks) in last.items():
        try:
            text = files.read(folder / file, limit=8 << 20, follow=False).decode("utf-8", "replace")
        except OSError:
            text = ""
        if not all(block in text for block in blocks):
            missed.add(name)
    return tuple(patch.name for patch in series.patches if patch.name in missed)


def added(content: bytes, name: str) -> dict[str, list[str]]:
    """file -> the blocks of neighbouring lines that a patch adds to it; nothing for what is not a patch."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(ProjectError):  # `envgen patch check` says why
        for file in read_patch(content, name, Place(name)):
            lines = (line for hunk in file.hunks for line in (hunk.heading, *hunk.lines))
            runs = itertools.groupby(lines, key=lambda line: line.startswith("+"))
            found[strip(file.target)] = ["\n".join(line[1:] for line in run) for is_added, run in runs if is_added]
    return found


class Checkout:
    """A git checkout on this machine."""

    def __init__(self, folder: Path) -> None:
        self._work = WorkTree(folder)
        self.folder = self._work.folder
        self.head = self._work.head
        if not self.head:
            raise UsageError(f"{folder} has no commit yet")

    @property
    def version(self) -> str:
        """The release that HEAD is tagged as, or nothing."""
        tags = self._work.git(["tag", "--points-at", "HEAD"]).text.split()
        return next((version for version in map(version_of_ref, tags) if version), "")

    def bare(self) -> GitTree:
        """The commit without any local change."""
        return GitTree(self._work, self.head, f"HEAD of {self.folder.name}", self.version)

    def apply(self, series: Series) -> None:
        """Apply a series that fits ``bare()``. Raises ``RefusedError`` with nothing changed."""
        combined = self._combined(series.patches)
        if self._fits(combined, "-R"):
            raise RefusedError("the patches are already applied in this checkout", hint="--reverse takes them out")
        if changed := self._work.edited("HEAD"):
            shown = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
            raise RefusedError(f"{self.folder} has uncommitted changes: {shown}", hint="commit or undo them first")
        self._work.git([*APPLY, "-"], stdin=combined)

    def reverse(self, series: Series) -> None:
        """Reverse a series, where all of it is applied. Raises ``RefusedError`` with nothing changed."""
        combined = self._combined(series.patches)
        if not self._fits(combined, "-R"):
            hint = "were their lines edited since, or HEAD moved? `git diff` there shows what is in"
            raise RefusedError(f"the patches are not in {self.folder} as the series has them", hint=hint)
        self._work.git([*APPLY, "-R", "-"], stdin=combined)

    def changes(self, series: Series) -> tuple[bytes, list[str]]:
        """What was changed since HEAD and the patches that are in: a diff, new files included; and what it leaves out.

        Left out is what git ignores and what a build's version script wrote.
        """
        base = self._base(series)
        now = self._work.tree([name for name in self._work.untracked() if not name.endswith("/")])
        words = ["diff", "--no-color", "--no-ext-diff", "--no-textconv"]
        names = self._work.git([*words, "--name-only", "--no-renames", "-z", base, now]).names
        left = self._work.generated(names)
        without = [f":(top,exclude,literal){name}" for name in left]
        options = ["--full-index", "--binary", "-M"]
        return self._work.git([*words, *options, base, now, "--", ":(top)", *without]).stdout, left

    def _base(self, series: Series) -> str:
        """HEAD with the patches that are in: those that can be taken out, from the first one on."""
        for count in range(len(series.patches), 0, -1):
            try:
                combined = self._combined(series.patches[:count])
            except EnvgenError:  # made on another version
                continue
            if self._fits(combined, "-R"):
                self._must_be_out(series.patches[count:])
                return self._patched(combined)
        self._must_be_out(series.patches)
        return self.head

    def _must_be_out(self, patches: tuple[Patch, ...]) -> None:
        """RefusedError for a patch that is neither in nor out: its lines would get into the new one, too."""
        for patch in patches:
            if not self._fits(patch.content) and self._has_lines_of(patch):
                message = f"it is unknown whether {patch.name} is in {self.folder}: its lines were edited"
                raise RefusedError(message, hint="commit it there first (git commit), then make the next change")

    def _has_lines_of(self, patch: Patch) -> bool:
        """Whether a file has a line that HEAD lacks and the patch adds."""
        before = self.bare().read(patch.touches)
        for changed in read_patch(patch.content, patch.path, Place(patch.path)):
            name = strip(changed.target)
            try:
                now = set(files.read(self.folder / name, follow=False).splitlines())
            except OSError:
                continue
            then = set(before[name].data.splitlines()) if name in before else set()
            added = {line[1:].encode("utf-8", "surrogateescape") for hunk in changed.hunks for line in hunk.lines
                     if line.startswith("+") and line[1:].strip()}  # fmt: skip
            if added.intersection(now - then):
                return True
        return False

    def _fits(self, content: bytes, *options: str) -> bool:
        return self._work.git([*APPLY, "--check", *options, "-"], stdin=content, check=False).code == 0

    def _combined(self, patches: tuple[Patch, ...]) -> bytes:
        """One diff for several patches, so that all of them are applied or none."""
        names = {name for patch in patches for name in patch.touches}
        with files.Scratch("patches") as scratch:
            folder = Path(scratch, "source")
            folder.mkdir()
            put(folder, self.bare().read(names))
            git(["init", "--quiet", "--template=", "--initial-branch=main"], cwd=folder)
            git(["add", "--all", "--force"], cwd=folder)
            git(["commit", "--quiet", "--allow-empty", "--no-verify", "--message=envgen"], cwd=folder)
            for patch in patches:
                git([*APPLY, "-"], cwd=folder, stdin=patch.content)
            git(["add", "--all", "--force"], cwd=folder)
            return git(["diff", "--cached", "--binary", "--full-index", "HEAD"], cwd=folder).stdout

    def _patched(self, diff: bytes) -> str:
        """The tree of HEAD with a diff applied."""
        with self._work.index("HEAD") as env:
            self._work.git([*APPLY, "--cached", "-"], stdin=diff, env=env)
            return self._work.git(["write-tree"], env=env).text
