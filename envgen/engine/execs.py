"""One program in a running container: what it is, how it is told from others, and talking to it until its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from envgen.engine.api import Stream, StreamTimeout
from envgen.engine.frames import Demultiplexer, OutputTooLong
from envgen.errors import EngineError

# Marks what an exec started, so that all of it can be found again and ended when its time is up.
_MARK = "ENVGEN_EXEC"
KILLER = (
    'for p in /proc/[0-9]*; do if grep -qs "$1" "$p/environ"; then kill -9 "${p#/proc/}" 2>/dev/null; fi; done; true'
)


@dataclass(frozen=True)
class Exec:
    """What is to run in a container, but for what it will read."""

    container: str
    argv: tuple[str, ...]
    has_input: bool
    env: tuple[tuple[str, str], ...]
    user: str
    workdir: str

    @property
    def what(self) -> str:
        return f"`{self.argv[0]}` in container {self.container[:12]}"

    @property
    def variables(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.env]


class Started:
    """An exec that runs: its connection, and what marks its processes."""

    def __init__(self, exec_id: str, mark: str, stream: Stream) -> None:
        self.id = exec_id
        self.mark = mark
        self.stream = stream


def new_mark() -> str:
    return f"{_MARK}={os.urandom(16).hex()}"


def talk(stream: Stream, stdin: bytes, timeout: float, what: str, kill: Callable[[], None]) -> Demultiplexer:
    """Run a stream to its end. Whatever goes wrong, the program is ended before the error is told."""
    try:
        return stream.communicate(stdin, timeout)
    except StreamTimeout:
        reason = f"{what} did not end within {timeout:g} s"
    except OutputTooLong:
        reason = f"{what} wrote more than 10 MiB"
    except (OSError, ValueError) as error:
        reason = f"{what}: the connection to the engine broke off: {error}"
    except BaseException:
        with contextlib.suppress(Exception):
            kill()
        raise
    with contextlib.suppress(EngineError):
        kill()
    raise EngineError(reason)
