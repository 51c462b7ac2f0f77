"""Signals while the program is still importing, and the locale that Python can't decode paths with."""

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


def test_a_locale_without_letters(tmp_path: Path) -> None:
    """Python itself falls back to UTF-8, unless it is told not to."""
    root = tmp_path / "\u00fc"
    root.mkdir()
    (root / "envgen.yaml").write_text("version: 1\nname: \u00fc\n", encoding="utf-8")
    env = {**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for words in (["-m", "envgen"], ["-c", "import sys; from envgen.__main__ import main; sys.exit(main())"]):
        done = subprocess.run([sys.executable, *words, "config"], cwd=root, env=env, capture_output=True, check=False)
        assert done.returncode == 2 and "name: '\u00fc' is not accepted" in done.stderr.decode(), done


def test_a_second_ctrl_c_while_python_ends_is_the_same_answer(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\nfrom envgen.cli import program\nfrom envgen.__main__ import main\n"
        "program.main = lambda _argv: 130\nresult = main()\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
        "sys.exit(result)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
