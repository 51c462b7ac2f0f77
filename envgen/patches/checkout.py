"""Patches in a mounted checkout: which it lacks, and a new one. Branches and the index stay as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from envgen import files
from envgen.engine.git import WorkTree
from envgen.errors import EnvgenError, UsageError
from envgen.patches.dry_run import APPLY, apply
from envgen.patches.series import Patch, Series, load_series
from envgen.patches.source import nearest_release, put
from envgen.patches.wheel import File
from envgen.profile.model import Profile, Source
from envgen.profile.values import version_of_ref
from envgen.text import shell_line


def lacking(profile: Profile, root: Path) -> dict[str, tuple[str, ...]]:
    """Mounted source -> the patches of its series that its checkout lacks.

    Patches that are not for the checkout's nearest release don't count.
    """
    lacked = {}
    for name, checkout in profile.checkouts.items():
        folder = checkout.below(root)
        patches = profile.sources[name].patches
        if patches and folder.is_dir():
            # `envgen patch check` reports an unreadable series
            with suppress(EnvgenError, OSError):
                series = load_series(root, patches).for_version(nearest_release(folder))
                if missing := _missing(folder, series):
                    lacked[name] = missing
    return lacked


def command_for(source: Source, folder: str, patches: Iterable[str]) -> str:
    """What applies patches of a source's series to its checkout, typed in the project's folder."""
    files_ = shell_line(f"patches/{source.patches}/{name}" for name in patches)
    return f"cat {files_} | {shell_line(['git', '-C', folder, 'apply'])}"


def _missing(folder: Path, series: Series) -> tuple[str, ...]:
    """The patches that a copy of their files lacks. Those that it has are taken back, the last
    first.
    """
    there = {}
    for name in {name for patch in series.patches for name in patch.touches}:
        with suppress(OSError):
            data = files.read(folder / name, limit=8 << 20, follow=False)
            there[name] = File(data, bool((folder / name).stat().st_mode & 0o100))
    missing: list[str] = []
    with files.Scratch("patches") as scratch:
        put(Path(scratch), there)
        for patch in reversed(series.patches):
            if _is_missing(Path(scratch), patch):
                missing.insert(0, patch.name)
            else:
                apply(Path(scratch), patch.content, "-R", "-C1")
    return tuple(missing)


_MODE = re.compile(
    rb"^diff --git \S+ \w/(.+)\nold mode 100(?:755|644)\nnew mode 100(755|644)$", re.M
)
_ADDS = re.compile(rb"^\+(?!\+\+ )", re.M)


def _is_missing(folder: Path, patch: Patch) -> bool:
    """Whether a patch is still to be applied. Lines that it has in common with other places may let
    git do both, apply it and take it back; then the place that is nearer to its own counts.
    """
    for name, mode in _MODE.findall(patch.content):
        path = folder / os.fsdecode(name)
        if path.is_file() and bool(path.stat().st_mode & 0o100) != (mode == b"755"):
            return True
    onward = _distance(folder, patch)
    back = _distance(folder, patch, "-R")
    if onward is None and back is None:
        # Edits in the lines around it leave one line of context.
        return apply(folder, patch.content, "--check", "-R", "-C1").code != 0
    if onward is None or back is None:
        return back is None
    return onward < back or (onward == back and not _ADDS.search(patch.content))


def _distance(folder: Path, patch: Patch, *options: str) -> int | None:
    """How many lines a patch's hunks are from their places; None where git does not apply it."""
    done = apply(folder, patch.content, "--check", "--verbose", *options)
    return sum(map(int, re.findall(r"offset -?(\d+) line", done.stderr))) if not done.code else None


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
        """The release of a tag at HEAD; "" without one."""
        tags = self._work.git(["tag", "--points-at", "HEAD"]).text.split()
        return next((version for version in map(version_of_ref, tags) if version), "")

    def changes(self, series: Series) -> tuple[bytes, list[str]]:
        """A diff of all changes since HEAD and the applied patches, with new files; and the files
        that it leaves out.

        It leaves out files that a build's version script wrote, and those that git ignores.
        """
        work = self._work
        base = self._base(series)
        untracked = [name for name in work.untracked() if not name.endswith("/")]
        now = work.tree(untracked)
        diff = ["diff", "--no-color", "--no-ext-diff", "--no-textconv"]
        names = ["--name-only", "--no-renames", "-z", base, now]
        changed = work.git([*diff, *names])
        left = work.generated(changed.names)
        without = [f":(top,exclude,literal){name}" for name in left]
        whole = ["--full-index", "--binary", "-M", base, now]
        made = work.git([*diff, *whole, "--", ":(top)", *without])
        return made.stdout, left

    def _base(self, series: Series) -> str:
        """HEAD with the applied patches: the longest start of the series that can be reversed."""
        for count in range(len(series.patches), 0, -1):
            try:
                combined = self._combined(series.patches[:count])
            except EnvgenError:  # for another version
                continue
            reverse = [*APPLY, "--check", "-R", "-"]
            if self._work.git(reverse, stdin=combined, check=False).code == 0:
                return self._patched(combined)
        return self.head

    def _combined(self, patches: tuple[Patch, ...]) -> bytes:
        """One diff for several patches, so that all of them are applied or none."""
        with self._work.index("HEAD") as env:
            for patch in patches:
                self._work.git([*APPLY, "--cached", "-"], stdin=patch.content, env=env)
            words = [
                "diff",
                "--cached",
                "--binary",
                "--full-index",
                "--no-ext-diff",
                "--no-textconv",
                "HEAD",
            ]
            return self._work.git(words, env=env).stdout

    def _patched(self, diff: bytes) -> str:
        """The tree of HEAD with a diff applied."""
        with self._work.index("HEAD") as env:
            self._work.git([*APPLY, "--cached", "-"], stdin=diff, env=env)
            return self._work.git(["write-tree"], env=env).text
