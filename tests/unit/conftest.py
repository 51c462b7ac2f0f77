"""The unit tier starts no process and opens no socket: a test that tries gets an error that names the tier."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from envgen.text import Verbosity

# A busy machine isn't a defect, and a search that differs from run to run isn't a gate: in CI each test tries the same
# examples every time (`CI` unset: new ones). ENVGEN_EXAMPLES: how many, where a second run need not search again.
settings.register_profile(
    "envgen",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=bool(os.environ.get("CI")),
    max_examples=int(os.environ.get("ENVGEN_EXAMPLES", "30")),
)
settings.load_profile("envgen")

_PROCESS_STARTERS = (
    "fork", "forkpty", "posix_spawn", "posix_spawnp", "popen", "system",
    "execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe",
    "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe",
)  # fmt: skip


class ForbiddenInUnitTests(AssertionError):
    """A unit test started a process or opened a socket."""


def _refuse(what: str) -> Any:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise ForbiddenInUnitTests(f"{what} in the unit tier; such a test belongs in tests/process")

    return refuse


@pytest.fixture(autouse=True)
def no_processes_and_no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every way to another process or to the network raise."""
    for name in _PROCESS_STARTERS:
        if hasattr(os, name):
            monkeypatch.setattr(os, name, _refuse(f"os.{name}"))
    monkeypatch.setattr(subprocess.Popen, "__init__", _refuse("subprocess.Popen"))
    monkeypatch.setattr(socket.socket, "__init__", _refuse("socket.socket"))
    monkeypatch.setattr(socket, "create_connection", _refuse("socket.create_connection"))
    monkeypatch.setattr(socket, "getaddrinfo", _refuse("socket.getaddrinfo"))
    yield


@pytest.fixture(autouse=True)
def no_envgen_variables(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Overrides in the developer's own shell, and what envgen remembers, must not change what a test sees."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    for name in list(os.environ):
        if name.startswith(("ENVGEN_", "DOCKER_")) or name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
            monkeypatch.delenv(name)
    # Nor must the Docker that is installed.
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path_factory.getbasetemp() / "docker"))
    monkeypatch.setattr("envgen.engine.endpoint.SYSTEM_PLUGINS", ())
    monkeypatch.setattr(Verbosity, "on", False)
