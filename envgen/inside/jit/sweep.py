"""What killed runs left: trash of a clear, stages of a load. Each is deleted under the lock that its maker holds."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

from envgen.inside.jit.choose import Survey
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Cache, Shelf, open_cache, root_of
from envgen.inside.jit.locks import BUSY, Held, acquire_inside, make_lock_folder
from envgen.inside.jit.tree import measure_path, opened, remove

# What FlashInfer's batch builds hold (build_jit_specs).
BATCH = "flashinfer_jit.lock"
STAGE = ".envgen-load-"  # at the root of the cache: what a load unpacks into


def leftovers(cache: Cache, trash: list[tuple[Shelf, str]]) -> dict[str, int]:
    """How much there is."""
    found = [(name, shelf.fd) for shelf, name in trash]
    found += [(name, cache.fd) for name in _stages(cache.fd) if not _is_held(name, cache.fd)]
    return {"count": len(found), "bytes": sum(_size(name, dir_fd) for name, dir_fd in found)}


def sweep(cache: Cache, trash: list[tuple[Shelf, str]], locked: set[int], errors: list[str]) -> dict[str, int]:
    """Delete it, in shelves whose batch lock we hold (``locked``) or get. Returns how much went."""
    done = total = 0
    with alone(cache.fd) as is_alone:
        if is_alone:
            done, total = sweep_stages(cache.fd, cache.device, errors)
    for shelf, name in trash:
        lock = None
        if shelf.fd not in locked:
            lock = _batch_lock(shelf)
            if lock is None:
                continue  # a batch build, or another envgen at work on just this
        total += _size(name, shelf.fd)
        done += 1
        remove(name, shelf.fd, cache.device, errors, shelf.shown + "/" + name)
        if lock is not None:
            os.close(lock)
    return {"count": done, "bytes": total}


@contextmanager
def alone(root_fd: int) -> Iterator[bool]:
    """Inside, no other envgen makes or sweeps stages: one that is made and not yet locked would look left behind.

    False when that can't be had within two seconds, because another process holds the root's lock.
    """
    for _ in range(40):
        try:
            fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05)
            continue
        try:
            yield True
        finally:
            fcntl.flock(root_fd, fcntl.LOCK_UN)
        return
    yield False


def sweep_stages(root_fd: int, device: int, errors: list[str]) -> tuple[int, int]:
    """Delete the stages of killed loads, with what had to go for them; call it ``alone``. Their number and bytes.

    One that can't be removed is reported in ``errors`` and stops nothing.
    """
    names = [name for name in _stages(root_fd) if not _is_held(name, root_fd)]
    total = sum(_size(name, root_fd) for name in names)
    for name in names:
        remove(name, root_fd, device, errors, name)
    return len(names), total


def _size(name: str, dir_fd: int) -> int:
    measured = measure_path(name, dir_fd)
    return measured.bytes if measured else 0


def run(request: dict[str, object]) -> dict[str, object]:
    """Operation ``sweep``: how much killed runs left in the cache ``root``; it goes, unless ``dry_run``."""
    errors: list[str] = []
    cache = open_cache(root_of(request), "", None)
    if cache is None:
        return {"count": 0, "bytes": 0, "errors": errors}
    try:
        trash = Survey(cache).trash
        found = leftovers(cache, trash) if request.get("dry_run") else sweep(cache, trash, set(), errors)
        return {**found, "errors": errors}
    finally:
        cache.close()


def _stages(root_fd: int) -> list[str]:
    try:
        return sorted(name for name in os.listdir(root_fd) if name.startswith(STAGE))
    except OSError:
        return []


def _is_held(name: str, root_fd: int) -> bool:
    """A load at work holds a lock on its stage."""
    try:
        with opened(name, root_fd) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in BUSY
    return False


def _batch_lock(shelf: Shelf) -> int | None:
    try:
        make_lock_folder(shelf.fd)
        return acquire_inside("tmp/" + BATCH, shelf.fd, BATCH)
    except (Held, Fault):
        return None
