"""The cores and the memory that compilers can have here. Who may start, compile-gate decides inside the container."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.engine.values import EngineInfo
from envgen.text import GIB


def compilers(wanted: int | None, engine: EngineInfo | None, *, root: Path = Path("/")) -> str:
    """One sentence on what compilers will do in a build or a JIT here. ``wanted``: at most so many, as given.

    What this machine and the engine's own allow: the smaller of both. compile-gate, in the image, decides.
    """
    cores: list[tuple[int, str]] = []
    memory: list[tuple[int, str]] = []
    if engine is None or engine.local:
        cores.append((len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, ""))
        with contextlib.suppress(OSError):
            available = mem_available((root / "proc/meminfo").read_text(encoding="utf-8"))
            memory += [] if available is None else [(available, "available")]
    if engine is not None:
        # A Docker Desktop's engine lives in a virtual machine that is smaller than this one.
        cores += [(engine.cpus, " of the engine's machine")] if engine.cpus > 0 else []
        memory += [(engine.memory, "in the engine's machine")] if engine.memory > 0 else []
    free, most = "", ""
    if memory:
        size, where = min(memory, key=lambda pair: pair[0])
        free = f" ({size / GIB:.1f} GiB {where} now)"
    if wanted is not None:
        most = f"; at most {wanted} at once, as given"
    elif cores:
        count, of_machine = min(cores, key=lambda pair: pair[0])
        most = f"; at most {count} at once, the cores{of_machine}"
    return f"compilers: each starts when the memory that it needs is free{free}{most}"


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) << 10 if found else None


def swap_total(meminfo: str) -> int:
    """``SwapTotal`` of /proc/meminfo in bytes; 0 where swap is off."""
    found = re.search(r"^SwapTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


# Groups of version 2 below which engines make those of their containers.
GROUPS = ("docker", "docker.slice", "system.slice", "machine.slice")


def memory_limits(root: Path = Path("/sys/fs/cgroup")) -> dict[str, int]:
    """Those of GROUPS that have a limit of memory of their own, with its bytes."""
    found = {}
    for name in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            found[name] = int((root / name / "memory.max").read_text(encoding="ascii"))  # "max": none
    return found


KILLERS = ("earlyoom", "nohang", "systemd-oomd")  # end programs of their choice when memory runs low


def killers(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Those of KILLERS that run on this machine."""
    names = set()
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            names.add((folder / "comm").read_text(errors="replace").strip())
    return tuple(one for one in KILLERS if one in names)


# Who listens on a TCP port of this machine: read from /proc, without any program.

_LISTEN = "0A"  # the state's number in /proc/net/tcp


@dataclass(frozen=True)
class Listener:
    """A listening socket. ``address`` is dotted or "*" for all of IPv6; ``inode`` leads to the process that has it."""

    address: str
    port: int
    inode: str


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """The listening sockets in the text of /proc/net/tcp or tcp6. Lines that make no sense are passed over."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", fields[1])
        if match:
            found.append(Listener(_address(match[1]), int(match[2], 16), fields[9]))
    return tuple(found)


def _address(text: str) -> str:
    """The kernel writes an IPv4 address as one little-endian word."""
    if len(text) == 32:
        return "*" if set(text) == {"0"} else _address(text[24:]) if text[:24].endswith("FFFF0000") else f"[{text}]"
    return ".".join(str(int(text[i : i + 2], 16)) for i in (6, 4, 2, 0))


def conflict(listeners: Sequence[Listener], port: int, address: str = "") -> Listener | None:
    """The listener that keeps ``address:port`` from being bound; an empty address means all of them."""
    every = ("", "0.0.0.0", "*")
    for one in listeners:
        if one.port == port and (address in every or one.address in (*every, address)):
            return one
    return None


def listening(proc: Path = Path("/proc")) -> tuple[Listener, ...]:
    """All listening TCP sockets of this machine."""
    found: list[Listener] = []
    for name in ("tcp", "tcp6"):
        try:
            found += parse_listeners((proc / "net" / name).read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
    return tuple(found)


def owner(listener: Listener, proc: Path = Path("/proc")) -> str:
    """Who has it, in words: a process by pid and name, or that we may not know."""
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


# Throw-away containers that a killed run left behind: who made one, and whether its maker still lives.

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
    created: float
    reason: str


@dataclass(frozen=True)
class Creator:
    """A process; a later one with its number is another. ``start`` is the kernel's, 0 where it has none."""

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
    return _start(creator.pid) == creator.start if creator.start else None


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
    return Leftover(str(row.get("Id", "")), name, created, reason)


def _start(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 where there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks and parentheses
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0
