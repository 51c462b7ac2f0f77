"""FlashInfer's lock files: ``flock`` locks of the package filelock. A file alone is not a lock.

A lock file is never deleted: a process could wait on the old file while another creates a new one,
and both hold one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import Iterator

from envgen.inside.common import listing
from envgen.inside.jit import tree
from envgen.inside.jit.layout import WORK, Shelf
from envgen.inside.jit.shapes import Leftovers

BATCH = "flashinfer_jit.lock"  # what FlashInfer's batch builds hold (build_jit_specs)
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Held(Exception):
    """Another process holds the lock."""


def probe(name: str, dir_fd: int) -> None:
    """Raises Held where the lock is held.

    Takes a shared lock for an instant, on a read-only descriptor, which works on a read-only mount,
    too; a builder that meets it retries after 50 ms.
    """
    try:
        with tree.opened(name, dir_fd, tree.FILE) as fd:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Held from None
    except OSError as error:
        if error.errno not in tree.GONE:
            raise


def acquire(name: str, dir_fd: int, shown: str) -> int:
    """Take the lock without waiting; closing the descriptor releases it. Raises Held, or Fault."""
    retries = 2
    for _ in range(20):
        fd = -1
        try:
            fd = _open_lock(name, dir_fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise tree.Fault("refused", f"the lock {shown} is not a regular file")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Newer filelock releases unlink the file on release: a lock on an unlinked file is
            # useless.
            if os.path.samestat(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), status):
                locked = fd
                fd = -1
                return locked
        except OSError as error:
            if error.errno in BUSY and fd >= 0:
                if not retries:
                    raise Held from None
                retries -= 1
                time.sleep(0.02)  # it may be another envgen's probe()
            elif error.errno not in (
                errno.EEXIST,
                *tree.GONE,
            ):  # created or removed by another process now
                raise tree.Fault(
                    "refused", f"the lock {shown} can't be taken: {tree.reason(error)}"
                ) from None
        finally:
            if fd >= 0:
                os.close(fd)
    raise tree.Fault("refused", f"the lock {shown} changes faster than it can be taken")


def _open_lock(name: str, dir_fd: int) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EACCES:
            return os.open(name, tree.FILE, dir_fd=dir_fd)  # flock doesn't need to write
        if error.errno != errno.ENOENT:
            raise
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=dir_fd)
    own_as(fd, dir_fd)
    return fd


def acquire_inside(path: str, dir_fd: int, shown: str, *, dry: bool = False) -> int | None:
    """Take (``dry``: test) a lock at ``path`` below a folder, through no link. Raises Held, or
    Fault.

    FlashInfer 0.7 keeps the locks of some kernels inside the module's folder (cake_gdn, ...). None:
    the lock no longer exists, or was only tested.
    """
    *folders, name = path.split("/")
    try:
        with tree.below(dir_fd, folders) as fd:
            probe(name, fd)
            return None if dry else acquire(name, fd, shown)
    except OSError as error:
        if error.errno not in tree.GONE:
            raise tree.Fault("refused", f"{shown}: {tree.reason(error)}") from None
        return None


def own_as(fd: int, folder_fd: int) -> None:
    """As root, give a new file to the owner of its folder, whose next build must open it."""
    if os.geteuid() == 0:
        owner = os.fstat(folder_fd)
        with suppress(OSError):  # a file system without owners
            os.fchown(fd, owner.st_uid, owner.st_gid)


def enter(fd: int, name: str) -> int:
    """The folder ``name`` in ``fd``, open, created where it is missing. OSError for a link."""
    try:
        os.mkdir(name, 0o777, dir_fd=fd)
        fresh = True
    except FileExistsError:
        fresh = False
    inner = os.open(name, tree.FOLDER, dir_fd=fd)
    if fresh:
        own_as(inner, fd)
    return inner


# The locks of many modules: all of them, or a refusal with those that are held.


def make_lock_folder(shelf_fd: int) -> None:
    """Create ``cached_ops/tmp`` where it is missing. Raises Fault for a link or a file."""
    with tree.refusing("cached_ops/tmp (the locks) can't be opened"):
        os.close(enter(shelf_fd, "tmp"))


class Hold:
    """Takes (``dry``: tests) the batch lock of each shelf, and the locks of these modules and
    inside of them, without waiting.

    Raises a ``refused`` Fault with the locks that are held.
    """

    def __init__(
        self,
        shelves: list[tuple[Shelf, list[str]]],
        *,
        dry: bool = False,
    ) -> None:
        self.dry = dry
        self.batches: list[int] = []
        self.modules: list[int] = []
        self._held: list[str] = []
        try:
            for shelf, names in shelves:
                if not dry:
                    make_lock_folder(shelf.fd)
                self._acquire(self.batches, shelf, f"tmp/{BATCH}")
                for name in names:
                    self._acquire(self.modules, shelf, f"tmp/{name}.lock")
            for shelf, names in (
                shelves if not self._held else []
            ):  # the module's own lock keeps new ones out
                for name in names:
                    measured = tree.measure_path(name, shelf.fd)
                    for path in measured.locks if measured is not None else ():
                        self._acquire(self.modules, shelf, f"{name}/{path}")
            if self._held:
                raise tree.Fault("refused", "is being built", held=self._held)
        except BaseException:
            self.release()
            raise

    def _acquire(self, fds: list[int], shelf: Shelf, path: str) -> None:
        shown = f"{shelf.shown}/{path}"
        try:
            fd = acquire_inside(path, shelf.fd, shown, dry=self.dry)
            fds += [] if fd is None else [fd]
        except Held:
            self._held.append(shown)

    def release(self) -> None:
        """Release all locks; the files stay."""
        close_all(self.modules)
        close_all(self.batches)


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


# Folders at the top of a cache for modules that are being deleted.
#
# The creator of one holds a lock on it. One without a holder is from a killed run, and the next run
# deletes it.


@contextmanager
def scratch(top: int, errors: list[str]) -> Iterator[int]:
    """A new folder in ``top``, open and locked; deleted with its content at the end."""
    with tree.refusing("the cache can't be written"):
        name, work = _begin(top)
    try:
        own_as(work, top)
        yield work
    finally:
        try:
            tree.remove(name, top, os.fstat(top).st_dev, errors, name)
        finally:
            os.close(work)


def _begin(top: int) -> tuple[str, int]:
    """Name and descriptor. A sweep may take the folder before it is locked: then create another
    one.
    """
    while True:
        name = WORK + os.urandom(8).hex()
        os.mkdir(name, 0o700, dir_fd=top)
        with suppress(FileNotFoundError):
            work = os.open(name, tree.FOLDER, dir_fd=top)
            fcntl.flock(work, fcntl.LOCK_EX)
            if tree.kind_of(name, top) == "folder":
                return name, work
            os.close(work)


def sweep(top: int, errors: list[str], *, dry: bool = False) -> Leftovers:
    """Delete (``dry``: measure) what killed runs left in ``top``; its count and bytes. What can't
    be removed is added to ``errors``.
    """
    count = size = 0
    for name in [name for name in listing(top) if name.startswith(WORK)]:
        with ExitStack() as stack:  # the lock is held until it is gone
            try:
                fcntl.flock(
                    stack.enter_context(tree.opened(name, top)), fcntl.LOCK_EX | fcntl.LOCK_NB
                )
            except OSError as error:
                if error.errno in (*BUSY, *tree.GONE):
                    continue
            measured = tree.measure_path(name, top)
            count = count + 1
            size = size + (measured.bytes if measured is not None else 0)
            if not dry:
                tree.remove(name, top, os.fstat(top).st_dev, errors, name)
    return Leftovers(count, size)
