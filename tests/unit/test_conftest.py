"""The fence around the unit tier bites."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

ESCAPES: dict[str, Callable[[], object]] = {
    "subprocess.run": lambda: subprocess.run([sys.executable, "-c", "pass"], check=False),
    "subprocess.Popen": lambda: subprocess.Popen([sys.executable, "-c", "pass"]),
    "os.system": lambda: os.system("true"),  # noqa: S605
    "os.popen": lambda: os.popen("true"),  # noqa: S605
    "os.fork": lambda: os.fork(),
    "os.posix_spawn": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], {}),
    "os.execv": lambda: os.execv(sys.executable, [sys.executable]),
    "os.spawnv": lambda: os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"]),
    "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "create_connection": lambda: socket.create_connection(("127.0.0.1", 9)),
    "name lookup": lambda: socket.getaddrinfo("localhost", 80),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_every_way_out_is_shut(name: str) -> None:
    with pytest.raises(AssertionError, match="in the unit tier"):
        ESCAPES[name]()


def test_overrides_of_the_developers_shell_are_gone() -> None:
    assert not [name for name in os.environ if name.startswith("ENVGEN_")]
