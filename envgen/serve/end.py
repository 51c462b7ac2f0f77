"""What a container says of its own end, for the message after a server went away."""

from __future__ import annotations

import time

from envgen.engine.base import Container, Engine
from envgen.engine.classify import classify
from envgen.errors import EngineError
from envgen.serve.readiness import printable

_LINES = 20
_PATIENCE = 5.0  # seconds; the port closes before the program has ended


def last_words(engine: Engine, container_id: str) -> str:
    """Its state, its last lines and their cause, as lines to append to a message; empty when nothing can be learnt."""
    try:
        container = _settled(engine, container_id)
        if container is None:
            return "\n  its container is gone"
        lines = [printable(line) for line in engine.logs(container_id, tail=_LINES).splitlines()]
    except EngineError as error:
        return f"\n  {error}"
    told = f"\n  {container.name}: {_state(container)}; its last lines:" + "".join(f"\n    {line}" for line in lines)
    cause = classify(lines, exit_code=container.exit_code or None, service=True)
    return told + (f"\n  cause: {cause.summary}" if cause else "")


def _settled(engine: Engine, container_id: str) -> Container | None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        container = engine.container(container_id)
        if container is None or container.state != "running" or time.monotonic() > deadline:
            return container
        time.sleep(0.25)


def _state(container: Container) -> str:
    if container.state == "running":
        again = f", restarted {container.restarts} times" if container.restarts else ""
        return f"it still runs{again}, but does not answer"
    if container.state in ("paused", "restarting"):
        return container.state
    reason = "killed for want of memory" if container.oom_killed else f"exit code {container.exit_code}"
    return f"{container.state}, {reason}"
