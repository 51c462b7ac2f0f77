"""Throw-away containers that a killed run left behind: who made one, and whether its maker still lives.

The engine removes such a container when it ends (``AutoRemove``), so what is left was never started, still runs for a
client that is gone, or met an engine that stopped in between.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THROWAWAY = "dev.envgen.throwaway"
CREATOR = "dev.envgen.creator"
# A container of another machine, or of an envgen in another container, can't be asked about. No question takes a day.
UNKNOWN_AGE = 24 * 3600.0
# One that has ended, or not begun: its maker may be about to start or to remove it.
ENDED_AGE = 600.0


@dataclass(frozen=True)
class Leftover:
    """A throw-away container that no process waits for. ``created``: seconds since 1970; ``reason``: in a few words."""

    id: str
    name: str
    image: str
    state: str
    created: float
    reason: str


@dataclass(frozen=True)
class Creator:
    """A process, so exactly that no later one can be taken for it. ``start`` is the kernel's, 0 where it has none."""

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"host={self.host} boot={self.boot} namespace={self.namespace} pid={self.pid} start={self.start}"

    @classmethod
    def parse(cls, text: str) -> Creator | None:
        """The inverse of ``str``; None for anything else."""
        found = re.fullmatch(r"host=(\S*) boot=(\S*) namespace=(\S*) pid=(\d{1,10}) start=(\d{1,20})", text, re.ASCII)
        return cls(found[1], found[2], found[3], int(found[4]), int(found[5])) if found else None


def this_process() -> Creator:
    """What ``CREATOR`` holds for a container of ours."""
    pid, boot, namespace = os.getpid(), "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    return Creator(re.sub(r"\s", "-", socket.gethostname()), boot, namespace, pid, _start(pid))


def lives(creator: Creator) -> bool | None:
    """Whether that process still runs; None where it can't be seen from here."""
    here = this_process()
    if creator.host == here.host and creator.boot and here.boot and creator.boot != here.boot:
        return False  # the machine was started again since
    if (creator.host, creator.boot, creator.namespace) != (here.host, here.boot, here.namespace):
        return None
    if creator.start:
        return _start(creator.pid) == creator.start
    try:
        os.kill(creator.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def judge(row: Mapping[str, Any], now: float) -> Leftover | None:
    """A row of the engine's list of containers as a leftover; None for one that a process may still wait for."""
    labels = row.get("Labels") or {}
    if THROWAWAY not in labels:
        return None
    creator = Creator.parse(str(labels.get(CREATOR, "")))
    alive = lives(creator) if creator else None
    state, created = str(row.get("State", "")), float(row.get("Created") or 0)
    age = now - created
    runs = state in ("running", "paused", "restarting")
    if alive:
        return None
    if alive is False and creator:
        reason = f"envgen (process {creator.pid} on {creator.host}), which started it, is gone"
    elif age > (UNKNOWN_AGE if runs else ENDED_AGE):
        reason = "it has run for more than a day" if runs else "it has ended"
    else:
        return None
    names = row.get("Names") or [str(row.get("Id", ""))[:12]]
    name = str(names[0]).removeprefix("/")
    return Leftover(str(row.get("Id", "")), name, str(row.get("Image", "")), state, created, reason)


def _start(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 where there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks and parentheses
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0
