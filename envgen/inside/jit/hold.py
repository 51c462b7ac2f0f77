"""Taking the locks of many modules at once: all of them, or a refusal that names who holds one."""

from __future__ import annotations

import os

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.locks import Held, acquire, acquire_inside, lock_folder
from envgen.inside.jit.procs import holders
from envgen.inside.jit.sweep import BATCH
from envgen.inside.jit.tree import measure_path


def raise_limit(wanted: int) -> None:
    """One descriptor a lock: a large cache needs more than the usual 1024."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted += 4096
        if soft != resource.RLIM_INFINITY and soft < wanted:
            wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ImportError, OSError, ValueError):
        pass  # then opening a lock says so


def hold(shelves: list[tuple[Shelf, list[str]]]) -> list[int]:
    """Take the batch lock of each shelf and the locks of these modules and inside of them, without waiting.

    The descriptors hold them until they are closed. Raises a ``refused`` Fault with the holders when one is held.
    """
    raise_limit(sum(len(names) for _, names in shelves))
    taken: list[int] = []
    held: list[tuple[str, tuple[int, int]]] = []
    try:
        for shelf, names in shelves:
            folder = lock_folder(shelf.fd, create=True)
            if folder is None:
                continue
            try:
                for name in [BATCH, *(name + ".lock" for name in names)]:
                    shown = shelf.shown + "/tmp/" + name
                    try:
                        taken.append(acquire(name, folder, shown))
                    except Held as lock:
                        held.append((shown, (lock.device, lock.inode)))
            finally:
                os.close(folder)
        for shelf, names in shelves if not held else []:  # nobody adds any while the module's own lock is ours
            for name in names:
                _inside(shelf, name, taken, held)
        if held:
            raise held_fault(held)
    except BaseException:
        release(taken)
        raise
    return taken


def _inside(shelf: Shelf, name: str, taken: list[int], held: list[tuple[str, tuple[int, int]]]) -> None:
    found = measure_path(name, shelf.fd)
    for path in found.locks if found is not None else ():
        shown = shelf.shown + "/" + name + "/" + path
        try:
            fd = acquire_inside(name + "/" + path, shelf.fd, shown)
            taken += [] if fd is None else [fd]
        except Held as lock:
            held.append((shown, (lock.device, lock.inode)))


def held_fault(held: list[tuple[str, tuple[int, int]]]) -> Fault:
    """The refusal: each lock (as shown, and its device and inode) with the processes that hold it."""
    known = holders(sorted({identity for _, identity in held}))
    return Fault("refused", "is being built", held=[
        {"lock": shown, "device": identity[0], "inode": identity[1], "holders": known[identity]}
        for shown, identity in held])  # fmt: skip


def release(taken: list[int]) -> None:
    """Closing is releasing; the files stay."""
    while taken:
        os.close(taken.pop())
