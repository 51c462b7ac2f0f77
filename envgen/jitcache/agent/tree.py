"""Folders by descriptor: nothing here follows a link, and nothing here can be led out of the folder it was given."""

from __future__ import annotations

import errno
import os
import stat

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that somebody planted must not hang.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
GONE = (errno.ENOENT, errno.ESTALE)
NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR)


class Measure:
    """What a folder holds. ``newest`` is the time of its youngest file."""

    __slots__ = ("bytes", "files", "libraries", "locks", "newest", "objects", "unread")

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.objects = 0
        self.newest = 0.0
        self.libraries: list[tuple[str, int, float]] = []  # name, inode, time
        self.locks: list[str] = []  # relative paths of *.lock: FlashInfer 0.7 keeps some inside module folders
        self.unread: list[str] = []


def measure(fd: int, total: Measure, prefix: str = "") -> Measure:
    """Add up all files below the folder ``fd``: one stat a file, links counted as themselves."""
    try:
        entries = os.scandir(fd)
    except OSError as error:
        total.unread.append((prefix or ".") + ": " + reason(error))
        return total
    size = files = objects = 0
    newest = total.newest
    folders = []
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it vanished while we looked
            files += 1
            size += status.st_size
            if status.st_mtime > newest:
                newest = status.st_mtime
            name = entry.name
            if name.endswith(".o"):
                objects += 1
            elif name.endswith(".so"):
                total.libraries.append((prefix + name, status.st_ino, status.st_mtime))
            elif name.endswith(".lock"):
                total.locks.append(prefix + name)
    total.bytes += size
    total.files += files
    total.objects += objects
    total.newest = newest
    for name in folders:
        try:
            inner = os.open(name, FOLDER, dir_fd=fd)
        except OSError as error:
            if error.errno not in GONE:
                total.unread.append(prefix + name + ": " + reason(error))
            continue
        try:
            measure(inner, total, prefix + name + "/")
        finally:
            os.close(inner)
    return total


def measure_path(name: str, dir_fd: int) -> Measure | None:
    """Measure the folder or file ``name``; None when it is gone."""
    total = Measure()
    try:
        fd = os.open(name, FOLDER, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        if error.errno not in NOT_A_FOLDER:
            total.unread.append(".: " + reason(error))
            return total
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError:
            return None
        total.bytes, total.files, total.newest = status.st_size, 1, status.st_mtime
        return total
    try:
        return measure(fd, total)
    finally:
        os.close(fd)


def kind_of(name: str, dir_fd: int) -> str:
    """``folder``, ``file``, ``link``, ``other`` or ``gone``; raises OSError when even that can't be seen."""
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except OSError as error:
        if error.errno in GONE:
            return "gone"
        raise
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "other"


def remove(name: str, dir_fd: int, device: int, errors: list[str], shown: str) -> None:
    """Remove a file or a whole folder below ``dir_fd``.

    Every step is relative to an open folder and refuses links: exchanging a folder for a link mid-way leads nowhere.
    A folder on another file system (something mounted into the cache) is left alone. What fails is put into ``errors``.
    """
    try:
        fd = os.open(name, FOLDER, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in GONE:
            return
        if error.errno in NOT_A_FOLDER:
            _step(os.unlink, name, dir_fd, errors, shown)
        else:
            errors.append(shown + ": " + reason(error))
        return
    try:
        if os.fstat(fd).st_dev != device:
            errors.append(shown + ": is on another file system; left alone")
            return
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_folder in found:
            if is_folder:
                remove(inner, fd, device, errors, shown + "/" + inner)
            else:
                _step(os.unlink, inner, fd, errors, shown + "/" + inner)
    except OSError as error:
        errors.append(shown + ": " + reason(error))
    finally:
        os.close(fd)
    _step(os.rmdir, name, dir_fd, errors, shown)


def _step(action: object, name: str, dir_fd: int, errors: list[str], shown: str) -> None:
    try:
        action(name, dir_fd=dir_fd)  # type: ignore[operator]
    except OSError as error:
        if error.errno not in GONE:
            errors.append(shown + ": " + reason(error))


def read_file(name: str, dir_fd: int, limit: int = 64 << 20) -> bytes:
    """The bytes of a regular file; OSError for anything else or for more than ``limit``."""
    fd = os.open(name, FILE, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, "too large")
        parts: list[bytes] = []
        while True:
            part = os.read(fd, 1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(fd)


def reason(error: OSError) -> str:
    """The system's own words for an error, without paths."""
    return error.strerror or type(error).__name__
