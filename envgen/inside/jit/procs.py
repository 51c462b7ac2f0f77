"""Which processes hold a lock, and which have loaded a library: read from /proc, as far as this container can see."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator

from envgen.inside.jit.names import WORK

# A line of /proc/PID/maps whose file is, or was when it was cleared, in a cache; the inode.
_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +/.*/(?:cached_ops|" + re.escape(WORK.encode()) + rb"\w+)/", re.M)


def holders(identities: list[tuple[int, int]], proc: str = "/proc") -> dict[tuple[int, int], list[dict[str, object]]]:
    """For each (device, inode) of a lock file, the processes that hold a flock on it: pid and command.

    /proc/locks shows the processes of other users too, whose open files even root may not see in a container. It names
    another device than stat does on btrfs and overlayfs: what it doesn't show is looked for among open files.
    """
    found: dict[tuple[int, int], set[int]] = {identity: set() for identity in identities}
    devices = {(os.major(device), os.minor(device), inode): (device, inode) for device, inode in identities}
    for place, pid in _locks(proc) if found else ():
        if place in devices:
            found[devices[place]].add(pid)
    missing = {identity for identity, held in found.items() if not held}
    for pid in pids(proc) if missing else ():
        base = proc + "/" + str(pid)
        for number in names_in(base + "/fd"):
            try:
                status = os.stat(base + "/fd/" + number)
                if (status.st_dev, status.st_ino) in missing:
                    with open(base + "/fdinfo/" + number, "rb") as file:
                        if b"FLOCK" in file.read():
                            found[status.st_dev, status.st_ino].add(pid)
            except OSError:
                continue  # closed meanwhile
    return {key: [{"pid": pid, "command": command(pid, proc)} for pid in sorted(held)] for key, held in found.items()}


def _locks(proc: str) -> Iterator[tuple[tuple[int, int, int], int]]:
    """The flock lines of /proc/locks: (major, minor, inode) and pid. Waiting ones (``->``) hold nothing."""
    try:
        with open(proc + "/locks", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return
    for pid, major, minor, inode in re.findall(r"^\d+: FLOCK +\S+ +\S+ +(\d+) +(\w+):(\w+):(\d+) ", text, re.M):
        if int(pid):  # 0: in another namespace
            yield (int(major, 16), int(minor, 16), int(inode)), int(pid)


def loaded(inodes: dict[int, str], proc: str = "/proc") -> tuple[list[dict[str, object]], int]:
    """Processes that have mapped a library of the cache, and how many processes could not be looked into.

    Libraries are told by inode: the same file has another path in every container, and once it is cleared.
    """
    found: list[dict[str, object]] = []
    unseen = 0
    if not inodes:
        return found, unseen
    for pid in pids(proc):
        if pid == os.getpid():
            continue
        try:
            with open(proc + "/" + str(pid) + "/maps", "rb") as file:
                data = file.read()
        except OSError as error:
            unseen += not isinstance(error, (FileNotFoundError, ProcessLookupError))
            continue
        found_here = {int(one.group(1)) for one in _MAPPED.finditer(data)}
        names = {inodes[inode] for inode in found_here if inode in inodes}
        if names:
            found.append({"pid": pid, "command": command(pid, proc), "modules": sorted(names)})
    return found, unseen


def pids(proc: str = "/proc") -> list[int]:
    """The processes that this container can see."""
    return sorted(int(name) for name in names_in(proc) if name.isdigit())


def names_in(folder: str) -> list[str]:
    """The names in a folder of /proc; none where it can't be seen."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def command(pid: int, proc: str = "/proc") -> str:
    """The command line of a process, shortened; its bare name in brackets for a kernel thread or a zombie."""
    base = proc + "/" + str(pid)
    try:
        with open(base + "/cmdline", "rb") as file:
            line = file.read(4096)
        if not line:
            with open(base + "/comm", "rb") as file:
                return "[" + file.read(64).decode("utf-8", "replace").strip() + "]"
    except OSError:
        return ""
    text = " ".join(part.decode("utf-8", "replace") for part in line.split(b"\0") if part)
    return text if len(text) <= 300 else text[:297] + "..."


def look(request: Dict[str, Any]) -> Dict[str, Any]:
    """Operation ``look``: which processes of this container hold these locks, or have loaded these libraries.

    ``locks``: [[device, inode], ...]; ``libraries``: [[inode, module], ...].
    """
    locks = [(device, inode) for device, inode in request.get("locks") or ()]
    users, unseen = loaded(dict(request.get("libraries") or ()))
    known = holders(locks)
    return {"holders": [known[identity] for identity in locks], "users": users, "unseen": unseen}
