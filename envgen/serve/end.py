"""What a container says of its own end, for the message after a server stopped answering."""

from __future__ import annotations

import time
from dataclasses import dataclass

from envgen.engine.base import Container, Engine
from envgen.errors import EngineError
from envgen.serve.log import log_text
from envgen.text import counted

_LINES = 20
_PATIENCE = 5.0  # seconds; the port closes before the program has ended


@dataclass(frozen=True)
class LastWords:
    """``container`` is None when it is gone, or when the engine could not be asked (``told`` says so)."""

    container: Container | None
    told: str
    lines: tuple[str, ...] = ()


def last_words(engine: Engine, container_id: str) -> LastWords:
    """Its state in a few words, and its last lines. It gets some seconds to end, for its port closes before that."""
    try:
        container = _settled(engine, container_id)
        if container is None:
            return LastWords(None, "its container is gone")
        lines = tuple(log_text(line) for line in engine.logs(container_id, tail=_LINES).splitlines())
    except EngineError as error:
        return LastWords(None, str(error))
    return LastWords(container, f"{container.name}: {_state(container)}", lines)


def _settled(engine: Engine, container_id: str) -> Container | None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        container = engine.container(container_id)
        if container is None or container.state != "running" or time.monotonic() > deadline:
            return container
        time.sleep(0.25)


def _state(container: Container) -> str:
    if container.state == "running":
        again = f", restarted {counted(container.restarts, 'time')}" if container.restarts else ""
        return f"it still runs{again}, but does not answer"
    if container.state in ("paused", "restarting"):
        return container.state
    reason = "killed because memory ran out" if container.oom_killed else f"exit code {container.exit_code}"
    if container.exit_code == 137 and not container.oom_killed:
        reason += " (killed from outside, or by the kernel because memory ran out)"
    return f"{container.state}, {reason}"
