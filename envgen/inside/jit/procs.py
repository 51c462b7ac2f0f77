"""Which processes hold a lock, and which have loaded a library: read from /proc, as far as this container can see."""

from __future__ import annotations

import os


def holders(identities: list[tuple[int, int]], proc: str = "/proc") -> dict[tuple[int, int], list[dict[str, object]]]:
    """For each (device, inode) of a lock file, the processes that hold a flock on it: pid and command."""
    found: dict[tuple[int, int], list[int]] = {identity: [] for identity in identities}
    for device, inode, pid in _locks(proc):
        for identity in identities:
            if identity[1] == inode and device == (os.major(identity[0]), os.minor(identity[0])):
                found[identity].append(pid)
    missing = [identity for identity in identities if not found[identity]]
    if missing:
        # btrfs and overlayfs name another device there than stat does, and some sandboxes have no /proc/locks.
        for identity, pid in _openers(missing, proc):
            found[identity].append(pid)
    return {
        key: [{"pid": pid, "command": command(pid, proc)} for pid in sorted(set(own))] for key, own in found.items()
    }


def _locks(proc: str) -> list[tuple[tuple[int, int], int, int]]:
    """The flock lines of /proc/locks: ((major, minor), inode, pid). Waiting ones (``->``) hold nothing."""
    found = []
    try:
        with open(proc + "/locks", "rb") as file:
            lines = file.read().decode("ascii", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        try:
            major, minor, inode = fields[5].split(":")
            found.append(((int(major, 16), int(minor, 16)), int(inode), int(fields[4])))
        except ValueError:
            continue
    return [entry for entry in found if entry[2] > 0]


def _openers(identities: list[tuple[int, int]], proc: str) -> list[tuple[tuple[int, int], int]]:
    """Processes with one of these files open whose fdinfo shows a lock on it."""
    found = []
    for pid in pids(proc):
        base = proc + "/" + str(pid)
        try:
            numbers = os.listdir(base + "/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                status = os.stat(base + "/fd/" + number)
                if (status.st_dev, status.st_ino) not in identities:
                    continue
                with open(base + "/fdinfo/" + number, "rb") as file:
                    if b"FLOCK" in file.read():
                        found.append(((status.st_dev, status.st_ino), pid))
            except OSError:
                continue
    return found


def loaded(inodes: dict[int, str], proc: str = "/proc") -> tuple[list[dict[str, object]], int]:
    """Processes that have mapped a library of the cache, and how many processes could not be looked into.

    Libraries are told by inode: the same file has another path in every container, and none at all once it is deleted.
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
        if b"/cached_ops/" not in data:
            continue
        names = set()
        for line in data.split(b"\n"):
            if b"/cached_ops/" not in line:
                continue
            fields = line.split(None, 5)
            if len(fields) > 5 and fields[4].isdigit() and int(fields[4]) in inodes:
                names.add(inodes[int(fields[4])])
        if names:
            found.append({"pid": pid, "command": command(pid, proc), "modules": sorted(names)})
    return found, unseen


def pids(proc: str = "/proc") -> list[int]:
    """The processes that this container can see."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
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


def look(request: dict[str, object]) -> dict[str, object]:
    """Operation ``look``: which processes of this container hold these locks, or have loaded these libraries.

    ``locks``: [[device, inode], ...]; ``libraries``: [[inode, module], ...].
    """
    locks = [(int(device), int(inode)) for device, inode in request.get("locks") or ()]  # type: ignore[attr-defined]
    libraries = {int(inode): str(name) for inode, name in request.get("libraries") or ()}  # type: ignore[attr-defined]
    users, unseen = loaded(libraries)
    known = holders(locks) if locks else {}
    return {"holders": [known[identity] for identity in locks], "users": users, "unseen": unseen}
