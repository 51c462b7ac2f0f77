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
    "os.fork": lambda: os.fork(),
    "os.execv": lambda: os.execv(sys.executable, [sys.executable]),
    "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "create_connection": lambda: socket.create_connection(("127.0.0.1", 9)),
    "name lookup": lambda: socket.getaddrinfo("localhost", 80),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_every_way_out_is_shut(name: str) -> None:
    with pytest.raises(AssertionError, match="in the unit tier"):
        ESCAPES[name]()


def test_overrides_of_the_developers_shell_are_gone() -> None:
    assert not [name for name in os.environ if name.startswith("ENVGEN_")]
