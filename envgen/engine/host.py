"""Facts about this machine: free memory, listening ports, leftover containers."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(match[1]) << 10 if match else None


def is_taken(port: int, address: str = "") -> bool:
    """Whether something listens on a TCP port of this machine, at ``address`` or (of "") at any."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended take nothing
        try:
            probe.bind((address.strip("[]"), port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


# Temporary containers that a killed run left behind.

THROWAWAY = "dev.envgen.throwaway"
CREATOR = "dev.envgen.creator"
# Seconds; for a creator on another machine or in another container, which cannot be checked.
UNKNOWN_AGE = 24 * 3600.0
# Seconds; its creator may be about to start or to remove it.
ENDED_AGE = 600.0


@dataclass(frozen=True)
class Leftover:
    """A temporary container that no process waits for. ``created``: seconds since 1970."""

    id: str
    name: str
    created: float
    reason: str


def this_process() -> str:
    """The value of the label ``CREATOR``: the machine and its namespace of processes, the pid, and its start."""
    host = re.sub(r"\s", "-", socket.gethostname())
    with contextlib.suppress(OSError):
        host += f"/{Path('/proc/self/ns/pid').readlink().name}"
    return f"{host} {os.getpid()} {_start(os.getpid())}"


def lives(creator: str) -> bool | None:
    """Whether that process still runs; None where it can't be checked from here."""
    match = re.fullmatch(r"(\S+) (\d{1,10}) (\d{1,20})", creator, re.ASCII)
    if not match or match[1] != this_process().partition(" ")[0] or not int(match[3]):
        return None
    return _start(int(match[2])) == int(match[3])


def judge(row: Mapping[str, Any], now: float) -> Leftover | None:
    """A row of the engine's list of containers as a leftover; None for one that a process may still wait for."""
    labels = row.get("Labels") or {}
    if THROWAWAY not in labels:
        return None
    creator = str(labels.get(CREATOR, ""))
    alive = lives(creator)
    state, created = str(row.get("State", "")), float(row.get("Created") or 0)
    age = now - created
    runs = state in ("running", "paused", "restarting")
    if alive:
        return None
    if alive is False:
        reason = f"envgen (process {creator.split()[1]} of this machine), which started it, has ended"
    elif age > (UNKNOWN_AGE if runs else ENDED_AGE):
        reason = "it has run for more than a day" if runs else "it has ended"
    else:
        return None
    names = row.get("Names") or [str(row.get("Id", ""))[:12]]
    name = str(names[0]).removeprefix("/")
    return Leftover(str(row.get("Id", "")), name, created, reason)


def _start(pid: int) -> int:
    """The start of a process in ticks since the machine's start; 0 where there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks and parentheses
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0
