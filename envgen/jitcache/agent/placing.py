"""Putting unpacked modules into the cache: under FlashInfer's locks, one rename each, never over what is there."""

from __future__ import annotations

import os

from envgen.jitcache.agent.archive import OURS, SHARED
from envgen.jitcache.agent.baseline import file_name
from envgen.jitcache.agent.fault import Fault
from envgen.jitcache.agent.hold import hold, release
from envgen.jitcache.agent.layout import Shelf
from envgen.jitcache.agent.locks import own_as
from envgen.jitcache.agent.plan import GROUPS
from envgen.jitcache.agent.tree import FOLDER, GONE, reason


def place(root: str, root_fd: int, stage: int) -> tuple[int, list[str], list[str]]:
    """Move what lies in ``stage`` to where it belongs. Returns how many modules came, which were kept, and problems."""
    problems: list[str] = []
    kept: list[str] = []
    placed = 0
    shelves: list[tuple[Shelf, int, int]] = []
    taken: list[int] = []
    try:
        for version, arch in _staged(stage):
            shelves.append(_open(root, root_fd, stage, version, arch))
        names = [(shelf, sorted(n for n in os.listdir(ops) if n not in SHARED)) for shelf, _, ops in shelves]
        taken = hold(names)
        for (shelf, base, ops), (_, wanted) in zip(shelves, names):  # noqa: B905  (Python 3.8)
            came, stayed = _modules(shelf, ops, wanted)
            placed += len(came)
            kept += [shelf.shown + "/" + name for name in stayed]
            if came:
                _generated(shelf, base, problems)
                _baselines(root_fd, stage, shelf, came, problems)
        return placed, kept, problems
    except OSError as error:
        raise Fault("failed", "not everything could be placed: " + reason(error) + "; load again") from None
    finally:
        release(taken)
        for shelf, base, ops in shelves:
            shelf.close()
            os.close(base)
            os.close(ops)


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


def _descend(fd: int, parts: list[str], *, create: bool) -> int:
    """A new descriptor of the folder below ``fd``; links on the way are refused by the system."""
    fd = os.dup(fd)
    for part in parts:
        try:
            fresh = False
            if create:
                try:
                    os.mkdir(part, 0o755, dir_fd=fd)
                    fresh = True
                except FileExistsError:
                    pass
            inner = os.open(part, FOLDER, dir_fd=fd)
            if fresh:
                own_as(inner, fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _open(root: str, root_fd: int, stage: int, version: str, arch: str) -> tuple[Shelf, int, int]:
    """The shelf in the cache, made where it is missing, and both folders of its counterpart in the stage."""
    parts = [part for part in (version, arch) if part]
    base = _descend(root_fd, parts, create=True)
    shelf = Shelf(root, version, arch, base, _descend(base, ["cached_ops"], create=True))
    staged = _descend(stage, parts, create=False)
    return shelf, staged, _descend(staged, ["cached_ops"], create=False)


def _modules(shelf: Shelf, ops: int, wanted: list[str]) -> tuple[list[str], list[str]]:
    """Which came, and which stayed because they were there.

    Up to 0.6.0 one record serves all modules of a shelf. Two records can't be joined, so such modules come only into
    a shelf that has none; without their record ninja would compile them again.
    """
    there = set(os.listdir(shelf.fd))
    shared = [name for name in SHARED if name in os.listdir(ops)]
    if shared and (there & set(SHARED)):
        return [], wanted
    came = []
    stayed = []
    for name in wanted:
        if name in there:
            stayed.append(name)
            continue
        os.rename(name, name, src_dir_fd=ops, dst_dir_fd=shelf.fd)
        came.append(name)
    for name in shared:
        os.rename(name, name, src_dir_fd=ops, dst_dir_fd=shelf.fd)
    return came, stayed


def _generated(shelf: Shelf, base: int, problems: list[str]) -> None:
    """What was generated for them, where the same path is not there yet."""
    try:
        source = _descend(base, ["generated"], create=False)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    try:
        target = _descend(shelf.base, ["generated"], create=True)
        try:
            for name in sorted(os.listdir(source)):
                if name in GROUPS and name in os.listdir(target):
                    _group(name, source, target)
                elif name not in os.listdir(target):
                    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(target)
    except OSError as error:
        problems.append(shelf.prefix + "/generated: " + reason(error))
    finally:
        os.close(source)


def _group(name: str, source: int, target: int) -> None:
    inner, outer = _descend(source, [name], create=False), _descend(target, [name], create=False)
    try:
        for part in sorted(set(os.listdir(inner)) - set(os.listdir(outer))):
            os.rename(part, part, src_dir_fd=inner, dst_dir_fd=outer)
    finally:
        os.close(inner)
        os.close(outer)


def _baselines(root_fd: int, stage: int, shelf: Shelf, came: list[str], problems: list[str]) -> None:
    """The records of what came. A record of an earlier library that lies there is replaced."""
    parts = [*OURS, shelf.version, shelf.arch or "none"]
    try:
        source = _descend(stage, parts, create=False)
    except OSError:
        return
    try:
        target = _descend(root_fd, parts, create=True)
        try:
            for name in sorted({file_name(name) for name in came} & set(os.listdir(source))):
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(target)
    except OSError as error:
        problems.append("/".join(parts) + ": " + reason(error))
    finally:
        os.close(source)
