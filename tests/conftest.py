"""What all tiers share; helper modules of the process and engine tiers are in tests/support."""

from __future__ import annotations

import signal

import local
import pytest


def pytest_sessionstart() -> None:
    """Started in the background of a script, this process ignores Ctrl-C, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def free_port() -> int:
    """A TCP port of this machine that is free."""
    return local.free_port()
