"""Facts about this machine: free memory, listening ports, leftover containers."""

from __future__ import annotations

import errno
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from envgen.binding import JsonObject


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """This machine's /proc/meminfo in bytes; empty if there is none."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {
        name: int(count) << 10
        for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    }


def is_taken(port: int, address: str = "") -> bool:
    """Whether something listens on a TCP port of this machine, at ``address`` or (of "") at any."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections that have ended take nothing
        try:
            probe.bind((address.strip("[]"), port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


# Temporary containers that a killed run left behind. The engine removes each one when its program
# ends.

THROWAWAY = "dev.envgen.throwaway"
RUNS = (
    24 * 3600.0
)  # seconds, after which one that runs counts as left behind: as long as a download may take
ENDED = 600.0  # and for another one: it may be about to start, or to be removed


@dataclass(frozen=True)
class Leftover:
    """A temporary container that no process waits for. ``created``: seconds since 1970."""

    id: str
    name: str
    created: float
    reason: str


def judge(row: JsonObject, now: float) -> Leftover | None:
    """A row of the engine's list of containers as a leftover; None for one that a process may still
    wait for.
    """
    created = float(row.get("Created") or 0)
    runs = row.get("State") in ("running", "paused", "restarting")
    if THROWAWAY not in (row.get("Labels") or {}) or not now - created > (
        RUNS if runs else ENDED
    ):  # NaN has no age
        return None
    id_ = str(row.get("Id", ""))
    names = row.get("Names") or [id_[:12]]
    name = str(names[0]).removeprefix("/")
    return Leftover(
        id_,
        name,
        created,
        "it has run for more than a day" if runs else "it has ended",
    )
