"""docker/runtime/libexec/server: a server never ends with 0 by itself; all else is as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = [sys.executable, "-I", "-S", str(Path(__file__).resolve().parents[2] / "docker/runtime/libexec/server")]
WAITS = "echo ready; while :; do sleep 0.05; done"


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVER, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run below nohup
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 75), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)],
)
def test_what_ends_by_itself_ends_with_another_code_than_0(script: str, code: int) -> None:
    found, out, err = ended(start("sh", "-c", f"echo out; {script}"))
    assert (found, out) == (code, "out\n")
    assert ("ended with 0" in err) is (code == 75) and "asks" not in err


@pytest.mark.parametrize(
    ("handler", "number", "code"),
    [("exit 0", signal.SIGTERM, 0), ("exit 7", signal.SIGTERM, 7), ("exit 0", signal.SIGINT, 0),
     ("-", signal.SIGTERM, 143), ("exit 0", signal.SIGHUP, 75), ("exit 0", signal.SIGUSR1, 75)],
)  # fmt: skip
def test_what_docker_asks_to_stop_ends_as_it_likes(handler: str, number: signal.Signals, code: int) -> None:
    """The parent stands for the container's init. SIGHUP and SIGUSR1 do not ask it to stop."""
    process = start("sh", "-c", f"trap {handler!r} {number.name[3:]}; {WAITS}")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(process.pid, number)
    found, _, err = ended(process)
    assert found == code and ("envgen: Docker asks the server to stop" in err) is (code != 75)


def test_a_signal_of_another_process_asks_nothing() -> None:
    """memory-guard's, or `docker exec SERVICE kill 7`: the server gets it, and has failed."""
    process = start("sh", "-c", f"trap 'exit 0' TERM; {WAITS}")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    subprocess.run(["sh", "-c", f"kill -TERM {process.pid}; exit"], check=True)
    found, _, err = ended(process)
    assert found == 75 and "asks" not in err


def test_asked_and_then_killed() -> None:
    """`docker stop` kills after its patience, and the log tells it from `docker kill`."""
    process = start("sh", "-c", f"trap 'echo no' TERM; echo $$; {WAITS}")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "no\n"
    os.kill(child, signal.SIGKILL)
    found, _, err = ended(process)
    assert found == 137 and err.count("Docker asks the server to stop (SIGTERM)") == 1


def test_the_server_has_the_signal_mask_and_the_standard_streams() -> None:
    program = "import signal, sys; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), sys.stdin.read()); sys.exit(4)"
    process = subprocess.Popen(
        [*SERVER, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.communicate("given", timeout=60)[0] == "set() given\n" and process.returncode == 4


@pytest.mark.parametrize(("name", "code"), [("/nowhere/vllm", 127), ("/etc", 126)])
def test_a_program_that_is_not_there(name: str, code: int) -> None:
    found, _, err = ended(start(name))
    assert found == code and f"envgen: cannot run {name}: " in err and len(err.splitlines()) == 2


def test_an_orphan_of_the_server_does_not_hold_it() -> None:
    process = subprocess.Popen([*SERVER, "sh", "-c", "sleep 60 & exit 5"], stderr=subprocess.DEVNULL)
    assert process.wait(timeout=50) == 5
