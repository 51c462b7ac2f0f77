"""Facts about this machine: free memory, listening ports, leftover containers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(match[1]) << 10 if match else None


# Who listens on a TCP port of this machine, from /proc.

_LISTEN = "0A"  # the state's number in /proc/net/tcp


@dataclass(frozen=True)
class Listener:
    """A listening socket. ``address``: dotted, or "*" for all of IPv6; ``inode``: leads to its process."""

    address: str
    port: int
    inode: str


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """The listening sockets in the text of /proc/net/tcp or tcp6. Invalid lines are skipped."""
    listeners = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", fields[1])
        if match:
            listeners.append(Listener(_address(match[1]), int(match[2], 16), fields[9]))
    return tuple(listeners)


def _address(text: str) -> str:
    """The kernel writes an IPv4 address as one little-endian word."""
    if len(text) == 32:
        return "*" if set(text) == {"0"} else _address(text[24:]) if text[:24].endswith("FFFF0000") else f"[{text}]"
    return ".".join(str(int(text[i : i + 2], 16)) for i in (6, 4, 2, 0))


def conflict(listeners: Sequence[Listener], port: int, address: str = "") -> Listener | None:
    """The listener that has ``address:port`` already; an empty address means all of them."""
    every = ("", "0.0.0.0", "*")
    for listener in listeners:
        if listener.port == port and (address in every or listener.address in (*every, address)):
            return listener
    return None


def listening(proc: Path = Path("/proc")) -> tuple[Listener, ...]:
    """All listening TCP sockets of this machine."""
    listeners: list[Listener] = []
    for name in ("tcp", "tcp6"):
        try:
            listeners += parse_listeners((proc / "net" / name).read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
    return tuple(listeners)


def owner(listener: Listener, proc: Path = Path("/proc")) -> str:
    """Its process in words: pid and name, or that it is another user's."""
    wanted = f"socket:[{listener.inode}]"
    for folder in proc.glob("[0-9]*"):
        try:
            links = list((folder / "fd").iterdir())
        except OSError:
            continue
        for link in links:
            try:
                if os.readlink(link) == wanted:  # noqa: PTH115 - a socket is not a path
                    return f"process {folder.name} ({(folder / 'comm').read_text(errors='replace').strip()})"
            except OSError:
                continue
    return "a process of another user"


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
