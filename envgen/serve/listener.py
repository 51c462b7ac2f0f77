"""Whether the server that answered on the host's network is the one in the container."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.binding import ShapeError, bind
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.inside import run
from envgen.profile.service import Service

PROGRAM = run.Program("listening")
TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class Sockets:
    """The answer of inside/listening.py: rows of /proc/net, the container's own inodes, processes
    that hide theirs.
    """

    rows: tuple[str, ...] = ()
    mine: tuple[str, ...] = ()
    hidden: int = 0


def port_on_host(service: Service) -> int | None:
    """The port of the machine that the service listens on itself; None if Docker forwards to it, or
    nothing asks it.
    """
    if service.network != "host" and service.cluster is None:
        return None
    asked = service.health is not None or (service.ready is not None and service.ready.port)
    return service.http_port if asked else None


def stranger(engine: Engine, container: Container, python: str, port: int) -> str:
    """What is wrong if another program than the container's listens at ``port``; "" if it does, or
    unknown.
    """
    try:
        answer = run.ask(
            run.in_container(engine, container.id), python, PROGRAM, {}, timeout=TIMEOUT
        )
        sockets = None if isinstance(answer, run.NoAnswer) else bind(Sockets, answer)
    except (EngineError, ShapeError):
        return ""  # no Python in it, or it has just ended, which the next look at it shows
    return "" if sockets is None else judge(sockets, port)


def judge(sockets: Sockets, port: int) -> str:
    """``stranger`` for what was found."""
    rows = [fields for fields in map(str.split, sockets.rows) if len(fields) > 9]
    listeners = {fields[9] for fields in rows if fields[1].rpartition(":")[2] == f"{port:04X}"}
    if not listeners or sockets.hidden or listeners & set(sockets.mine):
        return ""
    return f"port {port} answers, but a program outside of the container listens there, not the container"
