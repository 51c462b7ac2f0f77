"""Signals while the program is still importing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

# In front of the real one, which it imports after the signal.
CLICK = """
import os, signal, sys, time
sys.path.remove(os.path.dirname(__file__))
del sys.modules["click"]
os.kill(os.getpid(), int(os.environ["SIGNAL"]))
time.sleep(0.1)
import click
"""


@pytest.mark.parametrize(
    ("number", "ignored", "code", "text"),
    [
        (signal.SIGINT, False, 130, "envgen: interrupted\n"),
        (signal.SIGTERM, False, 130, "envgen: terminated\n"),
        (signal.SIGHUP, False, 130, "envgen: terminated\n"),
        (signal.SIGHUP, True, 0, ""),  # nohup
    ],
)
def test_a_signal_while_it_starts(tmp_path: Path, number: int, ignored: bool, code: int, text: str) -> None:
    (tmp_path / "click.py").write_text(CLICK)
    argv = [sys.executable, "-c", "import sys; from envgen.__main__ import main; sys.exit(main(['--version']))"]
    trap = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"] if ignored else []
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "SIGNAL": str(int(number))}
    done = subprocess.run(
        [*trap, *argv], env=env, capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run below nohup
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, text)
