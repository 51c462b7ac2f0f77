"""A source with patches, and its code without them: a commit in a git repository on this machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name

from envgen.engine.git import GitRepository, Mirror, WorkTree
from envgen.errors import EnvgenError, UsageError
from envgen.lock.model import Pinned
from envgen.patches.series import Series, load_series
from envgen.patches.wheel import File, WheelTree, released
from envgen.profile.model import REPOSITORIES, Profile, Source
from envgen.profile.values import version_of_ref
from envgen.redact import without_login
from envgen.text import progress

_COMMIT = re.compile(r"[0-9a-f]{40}")
SECONDS = 120.0  # to fetch a commit; a slower download is left to the build
PLAIN = ("100644", "100755")  # git's modes of plain files
_SECTION = re.compile(r"^\[build-system\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_REQUIRES = re.compile(r"^requires\s*=\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", re.MULTILINE)
_ITEM = re.compile(r"([\"'])\s*([A-Za-z0-9][A-Za-z0-9._-]*).*?\1")


def put(folder: Path, files: Mapping[str, File]) -> None:
    """Write files below a temporary folder. ``read_patch`` has checked the names."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


@dataclass(frozen=True)
class GitTree:
    """A commit in a repository on this machine."""

    repository: GitRepository
    commit: str
    label: str
    version: str = ""

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files of the commit; the work tree does not count."""
        files = {}
        for name in sorted(self.listed.keys() & {*names}):
            mode, _kind, blob = self.listed[name]
            if mode not in PLAIN:
                raise EnvgenError(
                    f"{name} is not a plain file in {self.label}, so no patch may touch it"
                )
            data = self.repository.git(["cat-file", "blob", blob], timeout=120).stdout
            files[name] = File(data, mode == "100755")
        return files

    @cached_property
    def listed(self) -> dict[str, list[str]]:
        """File -> its mode, kind and object."""
        listed = self.repository.git(["ls-tree", "-r", "-z", self.commit], timeout=300).text
        rows = (row.partition("\t") for row in listed.split("\0") if row)
        return {name: head.split(" ") for head, _, name in rows}


def nearest_release(folder: Path) -> str:
    """The release of the nearest tag at or before HEAD; "" without one."""
    described = WorkTree(folder).git(["describe", "--tags", "--abbrev=0"], check=False)
    return version_of_ref(described.text.strip()) if described.code == 0 else ""


Tree = GitTree | WheelTree  # the code of a source without its patches


@dataclass(frozen=True)
class PatchedSource:
    """A source with patches, as a profile builds or mounts it.

    ``locked``: the version of its wheel in envgen.lock. ``checkouts``: those on this machine that
    may have its history.
    """

    name: str
    profile: Profile
    source: Source
    root: Path
    commit: str = ""  # the ref's commit in envgen.lock; "" if it is not locked
    locked: str = ""
    checkouts: tuple[Path, ...] = ()
    pins: tuple[Pinned, ...] = ()  # of its wheel in envgen.lock

    @property
    def folder(self) -> str:
        """The folder of its patches, relative to the project."""
        return f"patches/{self.source.patches}"

    @property
    def mounted(self) -> Path | None:
        """Its checkout on this machine, where the profile mounts one."""
        checkout = self.source.origin.checkout
        return checkout.below(self.root) if checkout else None

    @cached_property
    def version(self) -> str:
        """The version that the profile builds or mounts; "" if it is not known."""
        if self.mounted is not None:
            return nearest_release(self.mounted) if self.mounted.is_dir() else ""
        return self.source.origin.version or self.locked

    def series(self, *, begun: bool = True) -> Series:
        """Read its patches. ProjectError with everything that is wrong with them."""
        return load_series(self.root, self.source.patches or "", begun=begun)

    def unpatched(self, ref: str = "") -> Tree:
        """The source without its patches: at ``ref``, else as the profile builds or mounts it.

        That is the commit of a checkout; the wheel; else the locked commit, the ref of the origin,
        or the tag of the release, in a checkout on this machine or from the git server. Only what
        is read is downloaded.
        """
        origin = self.source.origin
        version = self.version
        folder = self.mounted
        if folder is not None:
            work = WorkTree(folder)
            return GitTree(
                work, work.commit(ref or "HEAD"), f"{ref or 'HEAD'} of {folder}", version
            )
        url = origin.git or REPOSITORIES.get(self.source.distribution, "")
        wanted = (
            ref
            or self.commit
            or (origin.ref or "" if origin.git else f"v{version}" if version else "")
        )
        if not wanted:
            raise self._unknown()
        if origin.wheel is not None and not ref:
            try:
                return self.wheel()
            except EnvgenError as error:
                progress(
                    f"note: {error}; only a checkout or the repository of {self.name} is asked"
                )
        for checkout in self.checkouts:
            work = WorkTree(checkout)
            if commit := work.commit(wanted):
                return GitTree(work, commit, f"{wanted} in {checkout}", version_of_ref(wanted))
        if not url:
            hint = "the build applies its patches; to test them before: git apply --check, in a checkout of the release"
            raise UsageError(f"the git repository of {self.name} is not known", hint=hint)
        is_commit = _COMMIT.fullmatch(wanted) is not None
        tagged = version_of_ref(wanted)
        # A branch is fetched every time: it may have moved.
        mirror, commit = Mirror.fetched(
            url, wanted, moves=not (is_commit or tagged), timeout=SECONDS
        )
        where = f"of {without_login(url)}"
        if self.commit and not ref:
            return GitTree(
                mirror, commit, f"{origin.ref} {where}, locked at {commit[:12]}", version
            )
        return GitTree(mirror, commit, f"{wanted[:12] if is_commit else wanted} {where}", tagged)

    def wheel(self) -> WheelTree:
        """Its released wheel. EnvgenError without one."""
        if not self.version:
            raise self._unknown()
        house = self.profile.build.wheelhouse
        pip = self.profile.pip
        folder = house.below(self.root) if house else None
        indexes = (pip.index or "", *pip.extra_indexes)
        return released(self.source.distribution, self.version, indexes, folder, self.pins)

    def _unknown(self) -> UsageError:
        what = f"the version of {self.name} in profile {self.profile.name}"
        return UsageError(f"{what} is not known", hint=self.profile.lock_command)


# --- what its build asks for
# ------------------------------------------------------------------------------------------


def build_requires(pyproject: str) -> list[str]:
    """The names in ``[build-system] requires`` of a pyproject.toml. (No TOML reader is in Python
    3.10.)
    """
    section = _SECTION.search(pyproject)
    listed = _REQUIRES.search(section[1]) if section else None
    return [canonicalize_name(name) for _, name in _ITEM.findall(listed[1])] if listed else []
