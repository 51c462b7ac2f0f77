"""Putting unpacked modules into the cache: under FlashInfer's locks, one rename each, never over what is there."""

from __future__ import annotations

import errno
import os

from envgen.inside.jit.archive import OURS, SHARED
from envgen.inside.jit.baseline import file_name
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.hold import hold, release
from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.locks import own_as
from envgen.inside.jit.plan import GROUPS
from envgen.inside.jit.tree import FOLDER, GONE, reason

_THERE = (errno.EEXIST, errno.ENOTEMPTY)


class Placed:
    """Modules as ``<version>/<arch>/cached_ops/<module>``: those that came, those that were there already."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.kept: list[str] = []
        self.problems: list[str] = []


def place(root: str, root_fd: int, stage: int) -> Placed:
    """Move what lies in ``stage`` to where it belongs."""
    placed = Placed()
    opened: list[int] = []
    taken: list[int] = []
    try:
        shelves = []
        for version, arch in _staged(stage):
            parts = [part for part in (version, arch) if part]
            base = _descend(root_fd, parts, opened, create=True)
            shelf = Shelf(root, version, arch, base, _descend(base, ["cached_ops"], opened, create=True))
            staged = _descend(stage, parts, opened)
            ops = _descend(staged, ["cached_ops"], opened)
            shelves.append((shelf, sorted(set(os.listdir(ops)) - set(SHARED)), staged, ops))
        taken = hold([(shelf, names) for shelf, names, _, _ in shelves])
        for shelf, names, staged, ops in shelves:
            came = _modules(shelf, ops, names)
            placed.came += [shelf.shown + "/" + name for name in came]
            placed.kept += [shelf.shown + "/" + name for name in names if name not in came]
            if came:
                records = [*OURS, shelf.version, shelf.arch or "none"]
                wanted = {file_name(name) for name in came}
                _beside(staged, shelf.base, ["generated"], None, placed, opened)
                _beside(stage, root_fd, records, wanted, placed, opened)
        return placed
    except OSError as error:
        raise Fault("failed", "not everything could be placed: " + reason(error) + "; load again") from None
    finally:
        release(taken)
        release(opened)


def _staged(stage: int) -> list[tuple[str, str]]:
    """Version and arch of each ``cached_ops`` that was unpacked."""
    found = []
    for version in sorted(name for name in os.listdir(stage) if not name.startswith(".")):
        fd = os.open(version, FOLDER, dir_fd=stage)
        try:
            for name in sorted(os.listdir(fd)):
                if name == "cached_ops":
                    found.append((version, ""))
                elif name != "generated":
                    inner = os.open(name, FOLDER, dir_fd=fd)
                    if "cached_ops" in os.listdir(inner):
                        found.append((version, name))
                    os.close(inner)
        finally:
            os.close(fd)
    return found


def _descend(fd: int, parts: list[str], opened: list[int], *, create: bool = False) -> int:
    """The folder below ``fd``, open and noted in ``opened``; links on the way are refused by the system."""
    fd = os.dup(fd)
    opened.append(fd)
    for part in parts:
        fresh = False
        if create:
            try:
                os.mkdir(part, 0o755, dir_fd=fd)
                fresh = True
            except FileExistsError:
                pass
        inner = os.open(part, FOLDER, dir_fd=fd)
        opened.append(inner)
        if fresh:
            own_as(inner, fd)
        fd = inner
    return fd


def _modules(shelf: Shelf, ops: int, wanted: list[str]) -> list[str]:
    """Which came; the others were there.

    Up to 0.6.0 one record serves all modules of a shelf. Two records can't be joined, so such modules come only into
    a shelf that has none; without their record ninja would compile them again.
    """
    shared = [name for name in SHARED if name in os.listdir(ops)]
    if shared and set(os.listdir(shelf.fd)) & set(SHARED):
        return []
    came = [name for name in wanted if _move(name, ops, shelf.fd)]
    for name in shared:
        _move(name, ops, shelf.fd)
    return came


def _move(name: str, source: int, target: int) -> bool:
    """False, and nothing changed, when the name is taken there."""
    try:
        os.stat(name, dir_fd=target, follow_symlinks=False)
        return False
    except OSError as error:
        if error.errno not in GONE:
            raise
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno not in _THERE:  # made in this instant
            raise
        return False
    return True


def _beside(source: int, target: int, parts: list[str], wanted: set[str] | None, placed: Placed,
            opened: list[int]) -> None:  # fmt: skip
    """What belongs to the modules and lies elsewhere: generated sources that are not there yet, or the baselines
    ``wanted``, which replace those of earlier libraries."""
    try:
        inner = _descend(source, parts, opened)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    try:
        outer = _descend(target, parts, opened, create=True)
        for name in sorted(os.listdir(inner)):
            if wanted is not None:
                if name in wanted:
                    os.rename(name, name, src_dir_fd=inner, dst_dir_fd=outer)
            elif not _move(name, inner, outer) and name in GROUPS:
                deeper, there = _descend(inner, [name], opened), _descend(outer, [name], opened)
                for part in sorted(os.listdir(deeper)):
                    _move(part, deeper, there)
    except OSError as error:
        placed.problems.append("/".join(parts) + ": " + reason(error))
