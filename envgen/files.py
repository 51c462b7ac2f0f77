"""Files: one bounded read, one atomic write. Neither waits for a FIFO, reads a device, or follows a link out of a root.

Everything that envgen reads may have been put there by somebody else (a cloned project, a container that mounts a
checkout), and everything that it writes may be interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from envgen.errors import RefusedError

LARGEST = 64 << 20  # of a file that is read whole
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotAFile(OSError):
    """A path that should be a regular file and is a FIFO, a device, a folder, or a link where none may be."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


def read(path: Path, *, limit: int = LARGEST, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Anything else is an ``OSError``, at once.

    ``follow=False`` refuses a link as the last part of ``path`` too.
    """
    with _opened(path, follow) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"is {size >> 10} KiB; at most {limit >> 10} KiB are read", str(path))
        chunks = []
        left = limit + 1
        while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        if left <= 0:
            raise OSError(errno.EFBIG, f"grows while it is read; at most {limit >> 10} KiB are read", str(path))
    return b"".join(chunks)


@contextlib.contextmanager
def _opened(path: Path, follow: bool) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink() and not follow:
            raise NotAFile(path, "is a link") from None
        if error.errno == errno.ENXIO:  # a socket
            raise NotAFile(path, "is not a regular file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(path, "is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes, *, mode: int | None = None, within: Path | None = None) -> None:
    """Write a file whole or not at all: a temporary file beside it, on disk before it takes the name.

    A file that is there keeps its mode, unless ``mode`` names one. A link at ``path`` is replaced, never followed.
    With ``within`` (a folder above ``path``) missing folders are made, and a link between the two is refused.
    """
    with folder(path.parent, within) as directory:
        temporary = f".{path.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "wb") as out:
                before = _mode_of(path.name, directory) if mode is None else mode
                if before is not None:
                    os.fchmod(out.fileno(), before)
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise


def _mode_of(name: str, directory: int) -> int | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None


@contextlib.contextmanager
def folder(path: Path, within: Path | None = None, *, create: bool = True) -> Iterator[int]:
    """A descriptor of a folder. Below ``within`` no link is followed, and with ``create`` missing folders are made."""
    if within is None:
        descriptor = os.open(path, _DIRECTORY)
    else:
        descriptor = os.open(within, _DIRECTORY)
        at = within
        try:
            for part in path.relative_to(within).parts:
                if part == "..":
                    raise RefusedError(f"{path} leads out of {within}")
                at = at / part
                inner = _enter(descriptor, part, at, create)
                os.close(descriptor)
                descriptor = inner
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(directory: int, part: str, at: Path, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=directory)
    try:
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        link = stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
        what = "a link" if link else "not a folder"
        raise RefusedError(f"{at} is {what}; envgen writes there only below a real folder", hint=f"rm {at}") from None
