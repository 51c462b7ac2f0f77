"""Runs inside a container with the host's network: who listens there, and which sockets are this
container's.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Set

from envgen.inside.common import listing

Doc = Dict[str, Any]
LISTEN = "0A"  # the state's number in /proc/net/tcp
PROC = "/proc"
MOST = 1 << 20  # bytes of a table; a busy machine has thousands of connections


def table(path: str) -> List[str]:
    """The rows of listening sockets."""
    try:
        with open(path, "rb") as file:
            text = file.read(MOST).decode("ascii", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.split()[3:4] == [LISTEN]]


def sockets(proc: str) -> Set[str]:
    """The inodes of all sockets of the processes that can be read."""
    inodes = set()
    for pid in listing(proc):
        folder = os.path.join(proc, pid, "fd")
        for name in listing(folder) if pid.isdigit() else ():
            try:
                match = re.match(r"socket:\[(\d+)\]$", os.readlink(os.path.join(folder, name)))
            except OSError:
                continue
            if match:
                inodes.add(match.group(1))
    return inodes


def unreadable(proc: str) -> int:
    """The number of processes of other users, whose sockets can't be read."""
    pids = [pid for pid in listing(proc) if pid.isdigit()]
    return sum(1 for pid in pids if not os.access(os.path.join(proc, pid, "fd"), os.R_OK | os.X_OK))


def answer(request: Doc) -> Doc:
    """Rows of /proc/net, the inodes of this container's sockets, and how many processes hide
    theirs.
    """
    proc = str(request.get("proc", PROC))
    rows = table(os.path.join(proc, "net", "tcp")) + table(os.path.join(proc, "net", "tcp6"))
    inodes = {fields[9] for fields in map(str.split, rows) if len(fields) > 9}
    return {"rows": rows, "mine": sorted(inodes & sockets(proc)), "hidden": unreadable(proc)}
