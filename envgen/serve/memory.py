"""Is there enough memory on this machine for a service, and for the guard that ends it when memory
runs out?
"""

from __future__ import annotations

from pathlib import Path

from envgen.engine import box
from envgen.engine.host import meminfo
from envgen.errors import Problem
from envgen.profile.values import ByteSize
from envgen.render.environment import FLOOR_VARIABLE
from envgen.text import GIB

ROOT = Path("/")


def too_little(needed: int, root: Path = ROOT) -> list[Problem]:
    """A problem if less than ``needed`` bytes are available, also when a driver was waited for."""
    available = meminfo(root).get("MemAvailable", needed)
    if available < needed:
        available = box.settled(root).memory.get("MemAvailable", needed)
    if available >= needed:
        return []
    message = (
        f"it needs {needed / GIB:.1f} GiB of memory, and {available / GIB:.1f} GiB are available"
    )
    held = held_by(root)
    hint = "stop something (`ps axo rss,pid,comm --sort=-rss | head` shows the largest), or lower needs_memory"
    return [Problem(f"{message}; {held}" if held else message, hint=hint)]


def held_by(root: Path = ROOT) -> str:
    """Who holds the memory of this machine, in words; "" where nobody holds much."""
    machine = box.look(root)
    holders = [*machine.programs, *box.largest(machine, root)]
    names = ", ".join(map(str, holders))
    return "; ".join(filter(None, [machine.left, names and f"held by {names}"]))


def not_returned() -> list[str]:
    """Wait a few seconds for memory that a driver gives back; a note if it does not."""
    left = box.settled().left
    return [f"{left}: {box.REBOOT}"] if left else []


def in_page_cache(needed: int, *, unified: bool, root: Path = ROOT) -> list[str]:
    """A note if ``needed`` bytes are only free without the page cache, or if that is unknown.

    ``unified``: a GPU is used; if it shares this memory, CUDA counts the page cache as used.
    """
    memory = meminfo(root)
    available = memory.get("MemAvailable")
    free = memory.get("MemFree", needed)
    if available is None:
        return ["free memory is unknown: it is not in /proc/meminfo"]
    if not unified or free >= needed:
        return []
    note = f"of the {available / GIB:.1f} GiB available, only {free / GIB:.1f} GiB are unused, the rest is page "
    note += "cache; a GPU that shares this memory may count that as used: sync; echo 3 | sudo tee "
    return [note + "/proc/sys/vm/drop_caches"]


def too_low(floor: str) -> list[Problem]:
    """A problem if the machine has no more memory than ``floor``: memory-guard would end the
    service at once.

    ``floor``: a size from the profile or ENVGEN_MEMORY_FLOOR; `auto` fits every machine; "": no
    guard.
    """
    if floor in ("", "off") or floor.startswith("auto"):
        return []
    try:
        wanted = ByteSize.parse(floor).bytes
    except ValueError as error:
        return [Problem(f"{FLOOR_VARIABLE}: {error}", hint="or off")]
    available = meminfo(ROOT).get("MemAvailable")
    if available is None or wanted < available:
        return []
    message = f"memory.floor keeps {wanted / GIB:.1f} GiB free, and {available / GIB:.1f} GiB are available"
    return [
        Problem(
            message,
            hint="stop something, lower memory.floor, or start without the guard: ENVGEN_MEMORY_FLOOR=off",
        )
    ]
