"""Folders by descriptor: nothing here follows a link or leaves its folder."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Callable, Iterator, Sequence, Tuple

from envgen.inside.common import sha256_of

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a planted FIFO must not hang.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
GONE = (errno.ENOENT, errno.ESTALE)
NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR)
MANY = 100  # problems of one kind in one answer
_SPECIAL = 100  # locks and libraries of one module; FlashInfer 0.7 has a few
Stamp = Tuple[int, int, int, int]  # inode, size, mtime and ctime in ns


class Fault(Exception):
    """Nothing was done: ``refused``, ``not_found`` or ``failed``, with one sentence, and data for
    the host.
    """

    def __init__(self, kind: str, message: str, **data: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """An OSError inside is a refusal: ``what``, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise Fault("refused", f"{what}: {reason(error)}") from None


def reason(error: OSError) -> str:
    """The system's message for an error, without paths."""
    return error.strerror or type(error).__name__


def short(path: str) -> str:
    """A path for a message, cut to 200 characters."""
    return path if len(path) <= 200 else f"{path[:200]}..."


def note(problems: list[str], text: str) -> None:
    """Add a problem, up to MANY."""
    if len(problems) <= MANY:
        problems.append(text if len(problems) < MANY else "and more")


def note_unless_gone(problems: list[str], shown: str, error: OSError) -> None:
    """Add a problem, unless the file has just been removed."""
    if error.errno not in GONE:
        note(problems, f"{shown}: {reason(error)}")


@contextmanager
def noting(problems: list[str], shown: str) -> Iterator[None]:
    """An OSError inside is a problem, unless a file has just been removed."""
    try:
        yield
    except OSError as error:
        note_unless_gone(problems, shown, error)


@contextmanager
def opened(name: str, dir_fd: int | None = None, flags: int = FOLDER) -> Iterator[int]:
    """The folder (or file, by its flags) ``name``, open; OSError for a link."""
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(fd: int, name: str) -> int:
    return os.open(name, FOLDER, dir_fd=fd)


def descend(fd: int, parts: Sequence[str], step: Callable[[int, str], int] = open_folder) -> int:
    """The folder below ``fd``, open, through no link. ``step`` opens or creates one part."""
    fd = os.dup(fd)
    for part in parts:
        try:
            inner = step(fd, part)
        finally:
            os.close(fd)
        fd = inner
    return fd


@contextmanager
def below(
    fd: int, parts: Sequence[str], step: Callable[[int, str], int] = open_folder
) -> Iterator[int]:
    """The same, closed at the end."""
    inner = descend(fd, parts, step)
    try:
        yield inner
    finally:
        os.close(inner)


def kind_of(name: str, dir_fd: int) -> str:
    """``folder``, ``file``, ``link``, ``other`` or ``gone``; raises OSError where that can't be
    read.
    """
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except OSError as error:
        if error.errno in GONE:
            return "gone"
        raise
    kinds = {stat.S_IFLNK: "link", stat.S_IFDIR: "folder", stat.S_IFREG: "file"}
    return kinds.get(stat.S_IFMT(mode), "other")


def read_file(name: str, dir_fd: int, limit: int = 16 << 20) -> bytes:
    """The bytes of a regular file; OSError for anything else or for more than ``limit``."""
    with opened(name, dir_fd, FILE) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, "too large")
        with open(fd, "rb", closefd=False) as file:
            return file.read()


# Measuring


@dataclass
class Measure:
    """The content of a folder. ``newest``: the time of its newest file."""

    bytes: int = 0
    files: int = 0
    objects: int = 0
    newest: float = 0.0
    libraries: list[tuple[str, int, float]] = field(default_factory=list)  # name, inode, time
    # *.lock inside: FlashInfer 0.7 keeps some in module folders
    locks: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def measure(fd: int, total: Measure, prefix: str = "") -> Measure:
    """Add up all files below the folder ``fd``: one stat per file, links as themselves."""
    try:
        entries = os.scandir(fd)
    except OSError as error:
        note(total.unread, f"{prefix or '.'}: {reason(error)}")
        return total
    folders = []
    with entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # just removed
            total.files += 1
            total.bytes += status.st_size
            total.newest = max(total.newest, status.st_mtime)
            if name.endswith(".o"):
                total.objects += 1
            elif name.endswith(".so") and len(total.libraries) < _SPECIAL:
                total.libraries.append((prefix + name, status.st_ino, status.st_mtime))
            elif name.endswith(".lock") and len(total.locks) < _SPECIAL:
                total.locks.append(prefix + name)
    for name in folders:
        with noting(total.unread, prefix + name), opened(name, fd) as inner:
            measure(inner, total, f"{prefix}{name}/")
    return total


def measure_path(name: str, dir_fd: int) -> Measure | None:
    """Measure the folder or file ``name``; None where it is missing."""
    try:
        with opened(name, dir_fd) as fd:
            return measure(fd, Measure())
    except OSError as error:
        if error.errno in GONE:
            return None
        if error.errno not in NOT_A_FOLDER:
            return Measure(unread=[f".: {reason(error)}"])
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return None
    return Measure(status.st_size, 1, newest=status.st_mtime)


# Removing


def remove(name: str, dir_fd: int, device: int, errors: list[str], shown: str) -> None:
    """Remove a file or a whole folder below ``dir_fd``, following no link. Failures are added to
    ``errors``.

    Mounts in the cache stay. (``shutil.rmtree`` takes a descriptor only from Python 3.11 on.)
    """
    before = len(errors)

    def delete(inner: str, fd: int, path: str, function: Callable[..., None]) -> None:
        try:
            function(inner, dir_fd=fd)
        except OSError as error:
            if (
                error.errno != errno.ENOTEMPTY or len(errors) == before
            ):  # else its content was reported
                note_unless_gone(errors, short(path), error)

    with noting(errors, shown):
        if kind_of(name, dir_fd) != "folder":
            delete(name, dir_fd, shown, os.unlink)
            return
        for path, folders, names, fd in os.fwalk(name, topdown=False, dir_fd=dir_fd):
            where = shown + path[len(name) :]
            if os.fstat(fd).st_dev != device:
                note(errors, f"{where}: is on another file system; left alone")
                continue
            for inner in names + folders:
                is_folder = kind_of(inner, fd) == "folder"
                delete(inner, fd, f"{where}/{inner}", os.rmdir if is_folder else os.unlink)
        delete(name, dir_fd, shown, os.rmdir)


# The inputs of modules.


class FileFacts:
    """Stamps, SHA-256 digests and real paths of files, cached, since many modules include the same
    files.
    """

    def __init__(self) -> None:
        self.stamp = lru_cache(None)(stamp_of)
        self.digest = lru_cache(None)(digest_of)
        self.real = lru_cache(None)(os.path.realpath)


def stamp_of(path: str) -> Stamp | None:
    """None for a missing file. Links are followed, as by the compiler."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_of(path: str) -> str:
    """SHA-256 of a regular file; empty for anything else."""
    try:
        return (
            sha256_of(path) if stat.S_ISREG(os.stat(path).st_mode) else ""
        )  # opening a FIFO would hang
    except (OSError, ValueError):
        return ""


def digest_of_text(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
