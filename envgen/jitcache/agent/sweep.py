"""Trash of a killed clear. It is deleted under the batch lock, which every clear holds while it has trash."""

from __future__ import annotations

import os

from envgen.jitcache.agent.fault import Fault
from envgen.jitcache.agent.layout import Cache, Shelf
from envgen.jitcache.agent.locks import Held, acquire, lock_folder
from envgen.jitcache.agent.tree import measure_path, remove

# What FlashInfer's batch builds hold (build_jit_specs).
BATCH = "flashinfer_jit.lock"


def leftovers(trash: list[tuple[Shelf, str]]) -> dict[str, int]:
    """How much there is."""
    total = 0
    for shelf, name in trash:
        measured = measure_path(name, shelf.fd)
        total += measured.bytes if measured else 0
    return {"count": len(trash), "bytes": total}


def sweep(cache: Cache, trash: list[tuple[Shelf, str]], locked: set[int], errors: list[str]) -> dict[str, int]:
    """Delete it, in shelves whose batch lock we hold (``locked``) or get. Returns how much went."""
    done = []
    total = 0
    for shelf, name in trash:
        lock = None
        if shelf.fd not in locked:
            lock = _batch_lock(shelf)
            if lock is None:
                continue  # a batch build, or another envgen at work on just this
        try:
            measured = measure_path(name, shelf.fd)
            remove(name, shelf.fd, cache.device, errors, shelf.shown + "/" + name)
            total += measured.bytes if measured else 0
            done.append(name)
        finally:
            if lock is not None:
                os.close(lock)
    return {"count": len(done), "bytes": total}


def _batch_lock(shelf: Shelf) -> int | None:
    try:
        folder = lock_folder(shelf.fd, create=True)
        if folder is None:
            return None
        try:
            return acquire(BATCH, folder, BATCH)
        finally:
            os.close(folder)
    except (Held, Fault):
        return None
