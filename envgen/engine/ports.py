"""Who listens on a TCP port of this machine: read from /proc, without any program."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
