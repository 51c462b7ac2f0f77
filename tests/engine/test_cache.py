"""`envgen cache clear` beside others: locks and libraries of real processes, a real kill -9, a read-only mount.

Each test starts from a copy of what the image compiled (see jit_lab.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jit_lab import CACHE, Envgen, Lab
from projects import docker
from shells import SHELLS, completed, environment

pytestmark = pytest.mark.engine

VERSION = ("--version", "0.5.3")
OPS = f"{CACHE}/0.5.3/121a/cached_ops"
HOLD = (
    "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    "print('ready', flush=True); time.sleep(300)"
)


@pytest.fixture
def lab(jit_lab: Lab) -> Lab:
    jit_lab.start()
    return jit_lab


@contextmanager
def running(container: str, code: str, path: str) -> Iterator[None]:
    """A program of Python in a container, from when it says that it is ready."""
    words = ["docker", "exec", container, "python3", "-c", code, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"ready\n"
            yield
        finally:
            program.kill()


def test_a_lock_held_in_another_container(lab: Lab, cache_command: Envgen) -> None:
    """The lock reaches across."""
    other = docker("run", "-d", "--init", "-v", f"{lab.volume}:{CACHE}", lab.image)
    try:
        with running(other, HOLD, f"{OPS}/tmp/flashinfer_jit.lock"):
            error = cache_command("clear", "page", *VERSION, code=6)
    finally:
        docker("rm", "-f", other)
    assert "a batch build runs in 0.5.3/121a" in error


def test_who_must_be_restarted(lab: Lab, cache_command: Envgen) -> None:
    """Each running container with the cache: a program keeps what it has loaded."""
    assert cache_command.json("clear", "page", *VERSION, "--dry-run")["restart"] == ["dev"]
    assert "restart dev: its programs keep what they have loaded" in cache_command("clear", "page", *VERSION)


def test_a_kill_in_mid_clear_is_finished_by_the_next(lab: Lab, cache_command: Envgen) -> None:
    docker("exec", lab.container, "python3", "-c",
           f"[open('{OPS}/page/%d.o' % i, 'w').close() for i in range(60000)]")  # fmt: skip
    others = lab.stamps("vllm_comm")
    # It waits inside: a `docker exec` for each look would come too late on a busy machine.
    kill = (
        f"until ls -d {CACHE}/.envgen-work-*/0; do sleep 0.005; done; "
        "kill -9 $(grep -l '[e]nvgen-inside' /proc/[0-9]*/cmdline | cut -d/ -f3)"
    )
    killer = subprocess.Popen(["docker", "exec", lab.container, "sh", "-c", kill], stderr=subprocess.DEVNULL)
    command = [sys.executable, "-m", "envgen", "cache", "clear", "page", *VERSION]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False)
    killer.kill()
    killer.wait()
    assert done.returncode == 3 and b"gave no answer" in done.stderr, done
    assert lab.stamps("page") == {}
    assert len(lab.sh(f"ls -d {CACHE}/.envgen-work-*").split()) == 1
    cache_command("clear", "page", *VERSION, code=1)  # gone already, but what was left of it goes now
    assert lab.sh(f"ls -A {CACHE}").split() == ["0.5.3", "0.7.2.post1"]
    assert "page" not in lab.sh(f"ls -A {OPS}").split() and lab.stamps("vllm_comm") == others


def test_a_read_only_mount_is_refused(lab: Lab, cache_command: Envgen) -> None:
    lab.prebuilt = False
    lab.start(mode="ro")
    assert len(cache_command.json("list")["modules"]) == 3
    assert "ead-only" in cache_command("clear", "page", *VERSION, code=6)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_the_names_of_modules(shell: str, lab: Lab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = environment(home, **{name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ})
    env["PATH"] += f":{os.environ['PATH']}"
    assert completed(shell, "envgen cache clear vllm_c", lab.folder, env) == "vllm_comm"
