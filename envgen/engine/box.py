"""Facts about this machine that decide how a GPU server runs on it: kernel, memory, GPUs, and what
ends servers.

Read-only: /proc, and nvidia-smi where it is installed.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from envgen.engine import process
from envgen.engine.host import meminfo
from envgen.errors import EnvgenError
from envgen.text import GIB, visible

PATIENCE = 5.0  # seconds for a program
MOST = 2 << 20  # bytes that are read
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
LIMITS: Mapping[int, str] = _DATA["limits"]
UNIFIED = "GB10"  # in the name of a GPU whose memory is the machine's
LEFT = 4 << 30  # bytes that a driver may keep for itself
RETURN = 10.0  # seconds that its return is waited for
LARGEST = 3  # programs that are named
REBOOT = "sudo reboot   # if `envgen doctor` still says so in two minutes"


@dataclass(frozen=True)
class BoxGpu:
    """A GPU as nvidia-smi sees it. Watts, MHz, degrees Celsius, per cent; None: not reported."""

    name: str
    power: float | None = None
    clock: float | None = None
    fastest: float | None = None
    temperature: float | None = None
    load: float | None = None
    limits: tuple[str, ...] = ()  # what slows it down now


@dataclass(frozen=True)
class MemoryHolder:
    """A program that holds memory. ``bytes``: 0 where it is not known."""

    pid: int
    name: str
    bytes: int = 0

    def __str__(self) -> str:
        size = f", {self.bytes / GIB:.1f} GiB" if self.bytes else ""
        return f"{self.name} (pid {self.pid}{size})"


@dataclass(frozen=True)
class Box:
    """This machine. ``memory``: /proc/meminfo in bytes."""

    kernel: str = ""
    options: tuple[str, ...] = ()  # the kernel's command line
    memory: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[BoxGpu, ...] = ()
    programs: tuple[MemoryHolder, ...] = ()  # that use a GPU to compute

    @property
    def taken(self) -> int:
        """Bytes of unified memory that the driver holds."""
        if not any(UNIFIED in gpu.name for gpu in self.gpus):
            return 0
        known = sum(self.memory.get(name, 0) for name in _DATA["accounted"])
        return max(0, self.memory.get("MemTotal", 0) - known)

    @property
    def left(self) -> str:
        """What the driver has not given back, as a sentence; "" where a program may own it."""
        if self.programs or self.taken < LEFT:
            return ""
        return f"the driver holds {self.taken / GIB:.1f} GiB that no process owns"


def look(root: Path = Path("/")) -> Box:
    """The facts. What can't be read is left out."""
    memory = meminfo(root)
    return Box(
        kernel=_read(root / "proc/sys/kernel/osrelease").strip(),
        options=tuple(_read(root / "proc/cmdline").split()),
        memory=memory,
        gpus=parse_gpus(
            _ask(
                "nvidia-smi",
                f"--query-gpu={','.join(_DATA['fields'])}",
                "--format=csv,noheader,nounits",
            )
        ),
        programs=parse_programs(_ask("nvidia-smi", *_PROGRAMS)),
    )


def settled(root: Path = Path("/")) -> Box:
    """The facts, once a driver has given back what ended programs held, or after ``RETURN``."""
    until = time.monotonic() + RETURN
    while (box := look(root)).left and time.monotonic() < until:
        time.sleep(0.5)
    return box


def largest(machine: Box, root: Path = Path("/")) -> list[MemoryHolder]:
    """The largest programs, beside those that use a GPU."""
    pages = os.sysconf("SC_PAGE_SIZE")
    known = {one.pid for one in machine.programs}
    others = []
    for folder in (root / "proc").glob("[0-9]*"):
        pid = int(folder.name)
        match _read(folder / "statm").split():
            case [_, resident, mapped, *_] if pid not in known:
                size = (int(resident) - int(mapped)) * pages  # without files that it maps
                name = visible(_read(folder / "comm").strip())
                if size >= GIB // 2:
                    others.append(MemoryHolder(pid, name, size))
    others.sort(key=lambda one: -one.bytes)
    return others[:LARGEST]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def _ask(*argv: str) -> str:
    """What a program prints; "" where it is missing, fails or takes too long."""
    if not shutil.which(argv[0]):
        return ""
    with suppress(EnvgenError, OSError):
        done = process.run(list(argv), timeout=PATIENCE, check=False)
        return "" if done.code else done.stdout[-MOST:].decode("utf-8", "replace")
    return ""


def parse_gpus(text: str) -> tuple[BoxGpu, ...]:
    """The GPUs in nvidia-smi's table. A figure that it does not know (a GB10 has no memory) is
    None.
    """
    gpus = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(_DATA["fields"]):
            continue
        name, *figures, mask = words
        with suppress(ValueError):
            bits = int(mask, 16)
            limits = [limit for bit, limit in LIMITS.items() if bits & bit]
            power, clock, fastest, temperature, load = map(_number, figures)
            gpu = BoxGpu(name, power, clock, fastest, temperature, load, tuple(limits))
            gpus.append(gpu)
    return tuple(gpus)


_PROGRAMS = (
    "--query-compute-apps=pid,used_gpu_memory,process_name",
    "--format=csv,noheader,nounits",
)


def parse_programs(text: str) -> tuple[MemoryHolder, ...]:
    """The programs in nvidia-smi's table; memory that it does not know (some drivers on a GB10) is
    0.
    """
    rows = re.findall(r"^(\d+), ([^,]+), (.+)$", text, re.MULTILINE)
    holders = []
    for pid, used, name in rows:
        size = int(_number(used) or 0) << 20
        holders.append(MemoryHolder(int(pid), visible(name.strip()), size))
    return tuple(holders)


def _number(text: str) -> float | None:
    try:
        return number if math.isfinite(number := float(text)) else None
    except ValueError:  # [N/A]
        return None
