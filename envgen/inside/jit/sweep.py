"""Folders at the top of a cache for what goes or comes: modules that are cleared, an archive that is unpacked.

Whoever made one holds a lock on it. What has no holder was left by a killed run, and the next one deletes it.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import open_cache, root_of
from envgen.inside.jit.locks import BUSY, own_as
from envgen.inside.jit.names import WORK
from envgen.inside.jit.tree import FOLDER, GONE, measure_path, opened, reason, remove


@contextmanager
def scratch(top: int, errors: list[str]) -> Iterator[int]:
    """A new folder in ``top``, open and locked. At the end it goes, with all that is in it."""
    name = WORK + os.urandom(8).hex()
    try:
        with _alone(top):
            os.mkdir(name, 0o700, dir_fd=top)
            work = os.open(name, FOLDER, dir_fd=top)
            fcntl.flock(work, fcntl.LOCK_EX)
    except OSError as error:
        raise Fault("refused", "the cache can't be written: " + reason(error)) from None
    try:
        own_as(work, top)
        yield work
    finally:
        try:
            remove(name, top, os.fstat(top).st_dev, errors, name)
        finally:
            os.close(work)


@contextmanager
def _alone(top: int) -> Iterator[bool]:
    """Inside, no other envgen makes or sweeps: a folder that is made and not yet locked would look left behind.

    False when that can't be had within two seconds, because another process holds the lock of ``top``.
    """
    for _ in range(40):
        try:
            fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05)
            continue
        try:
            yield True
        finally:
            fcntl.flock(top, fcntl.LOCK_UN)
        return
    yield False


def leftovers(top: int) -> dict[str, int]:
    """How much killed runs left in ``top``."""
    return _total(top, _left(top))


def sweep(top: int, errors: list[str]) -> dict[str, int]:
    """Delete it; how much it was. What can't be removed is reported in ``errors`` and stops nothing."""
    with _alone(top) as is_alone:
        names = _left(top) if is_alone else []
        found = _total(top, names)
        for name in names:
            remove(name, top, os.fstat(top).st_dev, errors, name)
    return found


def discard(names: list[str], top: int, errors: list[str]) -> None:
    """Remove these folders. Each is renamed first: what is half removed must not be taken for something whole."""
    sweep(top, errors)
    with scratch(top, errors) as work:
        for name in names:
            try:
                os.rename(name, name, src_dir_fd=top, dst_dir_fd=work)
            except OSError as error:
                if error.errno not in GONE:
                    errors.append(name + ": " + reason(error))


def run(request: dict[str, object]) -> dict[str, object]:
    """Operation ``sweep``: how much killed runs left in the cache ``root``; it goes, unless ``dry_run``."""
    errors: list[str] = []
    cache = open_cache(root_of(request), "", None)
    if cache is None:
        return {"count": 0, "bytes": 0, "errors": errors}
    try:
        found = leftovers(cache.fd) if request.get("dry_run") else sweep(cache.fd, errors)
        return {**found, "errors": errors}
    finally:
        cache.close()


def _left(top: int) -> list[str]:
    try:
        return sorted(name for name in os.listdir(top) if name.startswith(WORK) and not _is_held(name, top))
    except OSError:
        return []


def _is_held(name: str, top: int) -> bool:
    try:
        with opened(name, top) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in BUSY
    return False


def _total(top: int, names: list[str]) -> dict[str, int]:
    measured = [measure_path(name, top) for name in names]
    return {"count": len(names), "bytes": sum(one.bytes for one in measured if one is not None)}
