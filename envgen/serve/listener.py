"""Whether the server that answered on the host's network is the one in the container."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.binding import ShapeError, bind
from envgen.engine import host
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.inside import run
from envgen.profile.model import Service

PROGRAM = run.Program("listening")
TIMEOUT = 10  # seconds
_HEADER = "sl local_address\n"  # of /proc/net/tcp


@dataclass(frozen=True)
class Sockets:
    """The answer of inside/listening.py: rows of /proc/net, the container's own inodes, processes that hide theirs."""

    rows: tuple[str, ...] = ()
    mine: tuple[str, ...] = ()
    hidden: int = 0


def port_on_host(service: Service) -> int | None:
    """The port of the machine that the service listens on itself; None if Docker forwards to it, or nothing asks it."""
    if service.network != "host" and service.cluster is None:
        return None
    if service.ready is not None and service.ready.port:
        return service.ready.port
    return service.health.port if service.health is not None and service.health.http is not None else None


def stranger(engine: Engine, container: Container, python: str, port: int) -> str:
    """What is wrong if another program than the container's listens at ``port``; "" if it does, or unknown."""
    try:
        answer = run.ask(run.in_container(engine, container.id), python, PROGRAM, {}, timeout=TIMEOUT)
        found = None if isinstance(answer, run.NoAnswer) else bind(Sockets, answer)
    except (EngineError, ShapeError):
        return ""  # no Python in it, or it has just ended, which the next look at it shows
    return "" if found is None else judge(found, port, local=engine.info().local)


def judge(found: Sockets, port: int, *, local: bool) -> str:
    """``stranger`` for what was found. ``local``: the listener's process can be looked up on this machine."""
    listeners = [one for one in host.parse_listeners(_HEADER + "\n".join(found.rows)) if one.port == port]
    if not listeners or found.hidden or any(one.inode in found.mine for one in listeners):
        return ""
    who = host.owner(listeners[0]) if local else "a program outside of the container"
    return f"port {port} answers, but {who} listens there, not the container"
