"""How long an engine is waited for, and why it can't be reached in one sentence. The requests are
in ``sdk.py``.
"""

from __future__ import annotations

import errno
import shutil

from envgen.engine.endpoint import Endpoint, forwards
from envgen.errors import EngineError, EngineTimeout
from envgen.text import reason_of

GREETING = 5  # seconds for the first answer of an engine
QUESTION = 8  # for what an engine answers at once; a busy one took two
WORK = 300  # for slow requests: removing a volume of many files, starting a container
SILENT = 30  # for a question beside them: an engine answers it whatever else it does


def unreachable(endpoint: Endpoint, error: BaseException) -> EngineError:
    """The error for an engine that can't be reached, or ends in the middle of an answer."""
    cause = _innermost(error)
    where = f"{endpoint.host} (from {endpoint.chosen_by})"
    if isinstance(cause, TimeoutError):
        message = f"the Docker Engine at {where} does not answer in time"
        return EngineTimeout(message, hint="it may be overloaded: try `docker version`")
    if connection := forwards.get((endpoint.host, "")):
        return connection.error()
    if isinstance(cause, PermissionError):
        return EngineError(
            f"no permission to use the Docker Engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`, then log in again)",
            command="sudo usermod -aG docker $USER",
        )
    if isinstance(cause, ConnectionRefusedError) and endpoint.local:
        return EngineError(f"the Docker Engine at {where} is stopped", hint=_HINT, command=_START)
    if (
        endpoint.local
        and isinstance(cause, OSError)
        and cause.errno in (errno.ENOENT, errno.ENOTDIR)
    ):
        if endpoint.chosen_by == "the default" and not shutil.which("docker"):
            return EngineError(
                "Docker is not installed: neither the program `docker` nor the socket /var/run/docker.sock exists",
                hint="https://docs.docker.com/engine/install/; in a checkout of envgen: scripts/engine up",
            )
        message = f"the Docker Engine is not running: no socket at {where}"
        return EngineError(message, hint=_HINT, command=_START)
    hint = "`docker version` tries the same; check that it runs, and that it is a Docker Engine"
    return EngineError(f"cannot reach the Docker Engine at {where}: {reason_of(cause)}", hint=hint)


def _innermost(error: BaseException) -> BaseException:
    """The cause, which requests and urllib3 wrap up to three times."""
    visited = {id(error)}
    while True:
        inner = error.__cause__ or error.__context__
        if inner is None:
            inner = next(
                (
                    arg
                    for arg in (*error.args, getattr(error, "reason", None))
                    if isinstance(arg, Exception)
                ),
                None,
            )
        if inner is None or id(inner) in visited:
            return error
        visited.add(id(inner))
        error = inner


_START = "sudo systemctl start docker"
_HINT = f"start it (`{_START}`), or set DOCKER_HOST to the engine that runs"
