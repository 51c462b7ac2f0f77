"""Taking the locks of many modules at once: all of them, or a refusal that names who holds one."""

from __future__ import annotations

import os
from contextlib import suppress

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.locks import BATCH, Held, acquire_inside, make_lock_folder
from envgen.inside.jit.procs import holders
from envgen.inside.jit.tree import measure_path


def raise_limit(wanted: int) -> None:
    """One descriptor a lock: a large cache needs more than the usual 1024."""
    with suppress(ImportError, OSError, ValueError):  # then opening a lock says so
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted += 4096
        if soft != resource.RLIM_INFINITY and soft < wanted:
            wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Hold:
    """The batch lock of each shelf, and the locks of these modules and inside of them; nothing is waited for.

    Raises a ``refused`` Fault with the holders when one is held. ``dry``: they are tested, and none is taken.
    """

    def __init__(self, shelves: list[tuple[Shelf, list[str]]], *, dry: bool = False) -> None:
        raise_limit(sum(len(names) for _, names in shelves))
        self.dry = dry
        self.batches: list[int] = []
        self.modules: list[int] = []
        self._held: list[tuple[str, tuple[int, int]]] = []
        try:
            for shelf, names in shelves:
                if not dry:
                    make_lock_folder(shelf.fd)
                self._take(self.batches, shelf, "tmp/" + BATCH)
                for name in names:
                    self._take(self.modules, shelf, "tmp/" + name + ".lock")
            for shelf, names in shelves if not self._held else []:  # no more come while the module's own lock is ours
                for name in names:
                    found = measure_path(name, shelf.fd)
                    for path in found.locks if found is not None else ():
                        self._take(self.modules, shelf, name + "/" + path)
            if self._held:
                raise _fault(self._held)
        except BaseException:
            self.release()
            raise

    def _take(self, taken: list[int], shelf: Shelf, path: str) -> None:
        shown = shelf.shown + "/" + path
        try:
            fd = acquire_inside(path, shelf.fd, shown, dry=self.dry)
            taken += [] if fd is None else [fd]
        except Held as lock:
            self._held.append((shown, (lock.device, lock.inode)))

    def release_modules(self) -> None:
        """Let the builders in again."""
        close_all(self.modules)

    def release(self) -> None:
        """Closing is releasing; the files stay."""
        close_all(self.modules)
        close_all(self.batches)


def _fault(held: list[tuple[str, tuple[int, int]]]) -> Fault:
    """The refusal: each lock (as shown, and its device and inode) with the processes that hold it."""
    known = holders(sorted({identity for _, identity in held}))
    return Fault("refused", "is being built", held=[
        {"lock": shown, "device": identity[0], "inode": identity[1], "holders": known[identity]}
        for shown, identity in held])  # fmt: skip


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
