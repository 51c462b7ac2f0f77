"""Bare sources: the few files of a release or a commit that patches touch, without unpacking the rest."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from envgen.engine.git import Repository
from envgen.errors import EnvgenError
from envgen.text import reason_of

LARGEST = 16 << 20  # bytes of one file


@dataclass(frozen=True)
class File:
    """One file of a source."""

    data: bytes
    executable: bool = False


class Tree(Protocol):
    """A source at one version, only ever read."""

    @property
    def label(self) -> str:
        """What it is, for people: ``vllm 0.14.0``."""
        ...

    @property
    def version(self) -> str:
        """Its release number, or nothing when it has none."""
        ...

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files; those that are not there are left out."""
        ...

    def names(self) -> set[str]:
        """All plain files."""
        ...


@dataclass(frozen=True)
class SdistTree:
    """A source distribution (.tar.gz), read without unpacking it."""

    archive: Path
    label: str
    version: str

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files. Nothing is written anywhere, so what else the archive holds can do no harm."""
        wanted, found = set(names), dict[str, File]()
        with self._opened() as archive:
            for member in archive:
                name = member.name.split("/", 1)[-1]
                if name not in wanted:
                    continue
                if not member.isfile():
                    raise EnvgenError(f"{name} is not a plain file in {self.label}: a patch may not touch it")
                if member.size > LARGEST:
                    raise EnvgenError(f"{name} in {self.label} has more than {LARGEST >> 20} MiB")
                data = archive.extractfile(member)
                if data is not None:
                    found[name] = File(data.read(), bool(member.mode & 0o100))
                if len(found) == len(wanted):
                    break
        return found

    def names(self) -> set[str]:
        """All plain files, from the archive's own list."""
        with self._opened() as archive:
            return {member.name.split("/", 1)[-1] for member in archive if member.isfile()}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.archive, "r|gz") as archive:
                yield archive
        except (tarfile.TarError, EOFError, OSError) as error:
            raise EnvgenError(
                f"cannot read {self.archive.name}: {reason_of(error)}", hint="delete it; it is fetched again"
            ) from None


@dataclass(frozen=True)
class WheelTree:
    """A wheel, which may lie on a server: only what is asked for is fetched. It has what is installed, no more."""

    file: BinaryIO
    label: str
    version: str

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files."""
        with self._archive() as archive:
            there = {info.filename: info for info in archive.infolist() if info.filename in names}
            if large := [name for name, info in there.items() if info.file_size > LARGEST]:
                raise EnvgenError(f"{large[0]} in {self.label} is too large to be patched")
            return {name: File(archive.read(info)) for name, info in there.items()}

    def names(self) -> set[str]:
        """All plain files."""
        with self._archive() as archive:
            return {info.filename for info in archive.infolist() if not info.is_dir()}

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.file) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise EnvgenError(f"cannot read {self.label}: {reason_of(error)}", hint="try again") from None


@dataclass(frozen=True)
class GitTree:
    """A commit in a repository on this machine."""

    repository: Repository
    commit: str
    label: str
    version: str = ""

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files, straight from the commit; the work tree is not looked at."""
        found: dict[str, File] = {}
        for name in sorted(names):
            listed = self.repository.git(["ls-tree", "-z", self.commit, "--", f":(literal){name}"]).text
            if not listed.rstrip("\0"):
                continue
            mode, kind, blob = listed.partition("\t")[0].split(" ")
            if kind == "tree":
                continue
            if mode not in ("100644", "100755"):
                raise EnvgenError(f"{name} is not a plain file in {self.label}: a patch may not touch it")
            data = self.repository.git(["cat-file", "blob", blob], timeout=120).stdout
            found[name] = File(data, mode == "100755")
        return found

    def names(self) -> set[str]:
        """All plain files of the commit."""
        listed = self.repository.git(["ls-tree", "-r", "-z", self.commit], timeout=300).text
        lines = [line.partition("\t") for line in listed.split("\0") if line]
        return {name for head, _, name in lines if head.startswith("100")}


def put(folder: Path, files: dict[str, File]) -> None:
    """Write files below a folder of ours. The names come from patches that were inspected before."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)
