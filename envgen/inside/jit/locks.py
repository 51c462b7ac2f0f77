"""FlashInfer's lock files: ``flock`` locks of the package filelock. A file's presence means nothing; only flock tells.

A lock file is never deleted: one process could wait on the old file while another makes a new one, and both hold one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.tree import FILE, FOLDER, GONE, descend, reason

BATCH = "flashinfer_jit.lock"  # what FlashInfer's batch builds hold (build_jit_specs)
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Held(Exception):
    """Another process has it. ``device`` and ``inode`` identify the lock file, to find the holder."""

    def __init__(self, device: int, inode: int) -> None:
        super().__init__("held")
        self.device = device
        self.inode = inode


def probe(name: str, dir_fd: int) -> tuple[int, int] | None:
    """Who could answer: (device, inode) of the lock file when it is held, None when it is free or not there.

    Takes a shared lock for an instant, on a descriptor that can't write: this works on a read-only mount too, and a
    builder that meets it tries again 50 ms later.
    """
    try:
        fd = os.open(name, FILE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in BUSY:
                return status.st_dev, status.st_ino
            raise
        return None
    finally:
        os.close(fd)


def acquire(name: str, dir_fd: int, shown: str) -> int:
    """Take the lock without waiting; the descriptor holds it until it is closed. Raises Held, or Fault."""
    patience = 2
    for _ in range(20):
        fd = -1
        try:
            fd = _open(name, dir_fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Fault("refused", "the lock " + shown + " is not a regular file")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Newer filelock releases unlink the file on release: a lock on a file without a name guards nothing.
            now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                taken, fd = fd, -1
                return taken
        except OSError as error:
            if error.errno in BUSY and fd >= 0:
                if not patience:
                    raise Held(status.st_dev, status.st_ino) from None
                patience -= 1
                time.sleep(0.02)  # it may be the instant of another envgen's probe()
            elif error.errno != errno.EEXIST and error.errno not in GONE:  # made or removed by another at this moment
                raise Fault("refused", "the lock " + shown + " can't be taken: " + reason(error)) from None
        finally:
            if fd >= 0:
                os.close(fd)
    raise Fault("refused", "the lock " + shown + " changes faster than it can be taken")


def acquire_inside(path: str, dir_fd: int, shown: str, *, dry: bool = False) -> int | None:
    """Take (``dry``: test) a lock at ``path`` below a folder; no link on the way is followed.

    FlashInfer 0.7 keeps the locks of some kernels inside the module's folder (cake_gdn, ...). None: nothing was taken,
    for it is gone, or only tested. Raises Held, or Fault.
    """
    *folders, name = path.split("/")
    fd = -1
    try:
        fd = descend(dir_fd, folders)
        identity = probe(name, fd)
        if identity is not None:
            raise Held(*identity)
        return None if dry else acquire(name, fd, shown)
    except OSError as error:
        if error.errno not in GONE:
            raise Fault("refused", shown + ": " + reason(error)) from None
        return None
    finally:
        if fd >= 0:
            os.close(fd)


def _open(name: str, dir_fd: int) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EACCES:
            return os.open(name, FILE, dir_fd=dir_fd)  # flock doesn't need to write
        if error.errno != errno.ENOENT:
            raise
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=dir_fd)
    own_as(fd, dir_fd)
    return fd


def own_as(fd: int, folder_fd: int) -> None:
    """Give what root made to the owner of its folder, who must be able to open it for the next build."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(folder_fd)
    with suppress(OSError):  # a file system without owners
        os.fchown(fd, owner.st_uid, owner.st_gid)


def enter(fd: int, name: str) -> int:
    """The folder ``name`` in ``fd``, open; made where it is missing. A link of that name is an OSError."""
    try:
        os.mkdir(name, 0o777, dir_fd=fd)
        fresh = True
    except FileExistsError:
        fresh = False
    inner = os.open(name, FOLDER, dir_fd=fd)
    if fresh:
        own_as(inner, fd)
    return inner


def make_lock_folder(shelf_fd: int) -> None:
    """``cached_ops/tmp``, made where it is missing. Raises Fault when it is a link or a file."""
    try:
        os.close(enter(shelf_fd, "tmp"))
    except OSError as error:
        raise Fault("refused", "cached_ops/tmp (the locks) can't be opened: " + reason(error)) from None
