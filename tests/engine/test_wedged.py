"""A real vLLM that generates nothing: what is wedged ends with its stacks and is started again; what waits is left alone.

In the container the three minutes are twenty seconds; that they are three is the other tests', and the soak's.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from cpu_server import CpuServer
from faulty_server import Faulty
from local import until
from projects import docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

QUIET = 20
LONG = {
    '"/models/tiny"': '"/models/long"', "hidden_size=64": "hidden_size=1024", "num_hidden_layers=2": "num_hidden_layers=16",
    "intermediate_size=128": "intermediate_size=2048", "num_attention_heads=2": "num_attention_heads=16",
    "head_dim=32": "head_dim=64", "max_position_embeddings=512": "max_position_embeddings=16384",
}  # fmt: skip
PROMPT = 12000  # tokens
ATTACH, DETACH = 16, 17  # of ptrace
ALL_THREADS = 0x40000000  # __WALL


@pytest.fixture(scope="module")
def faulty(cpu_server: CpuServer) -> Iterator[Faulty]:
    make_model(cpu_server)
    made = Faulty.described(
        cpu_server, "wedged", restart="on-failure:9", health={"http": "/health", "interval": "5s", "complete": "5s"},
        env={"VLLM_SERVER_DEV_MODE": 1},
        args={"model": "/models/long", "max-model-len": 12288, "max-num-batched-tokens": 256,
              "kv-cache-memory-bytes": 256 << 20},
    )  # fmt: skip
    cpu_server.project.envgen("up", "wedged", "-p", "cpu")
    hurry(made)
    yield made
    docker("rm", "-f", made.container, check=False)
    cpu_server.write_local()


def make_model(server: CpuServer) -> None:
    """The tiny one, so large that a long prompt takes minutes on a CPU."""
    code = (server.project.root / "make_tiny_model.py").read_text(encoding="utf-8")
    for old, new in LONG.items():
        assert old in code, old
        code = code.replace(old, new)
    models = server.project.root / "models"
    docker("run", "--rm", "-i", "--entrypoint", "python3", "-v", f"{models}:/models", server.image, "-", stdin=code)


def hurry(faulty: Faulty) -> None:
    program = "/opt/envgen/bin/envgen-health"
    docker("exec", faulty.container, "sed", "-i", f"s/^QUIET = 180.0/QUIET = {QUIET}.0/", program)
    assert docker("exec", faulty.container, "grep", "-c", f"^QUIET = {QUIET}.0", program) == "1"


def serves(faulty: Faulty) -> None:
    until(faulty.completes, lambda: faulty.log[-3000:], 900)


def stop(title: str) -> Callable[[Faulty], Callable[[], None]]:
    def make(faulty: Faulty) -> Callable[[], None]:
        faulty.send(title, signal.SIGSTOP)
        return lambda: None

    return make


def hang(faulty: Faulty) -> Callable[[], None]:
    faulty.fault("hang", on=True)
    return lambda: faulty.fault("hang", on=False)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        pytest.param(stop("EngineCore"), "VLLM::EngineCore: T (stopped)", id="engine stopped"),
        pytest.param(stop("Worker"), "VLLM::Worker: T (stopped)", id="worker stopped"),
        pytest.param(hang, "in hangs_here", id="scheduler hangs"),
    ],
)
def test_a_wedged_server_leaves_its_stacks_and_is_started_again(
    faulty: Faulty, make: Callable[[Faulty], Callable[[], None]], shown: str
) -> None:
    """Right after its first answer: what `up` has asked, and no health check has seen."""
    serves(faulty)
    before, start = faulty.restarts, len(faulty.log)
    undo = make(faulty)
    try:
        until(lambda: faulty.restarts > before, lambda: faulty.log[start:][-3000:], 400)
    finally:
        undo()
    log = faulty.log[start:]
    assert "wedged: the server is ended: tiny generates nothing: " in log and shown in log
    assert "exit code 76" in log and "vllm:generation_tokens_total" in log
    dumps = [log.count(f"in {place}") for place in ("run_engine_core", "worker_busy_loop", "run_server")]
    assert all(dumps), dumps  # the engine's, the worker's and the API server's own
    assert "Fatal Python error: Fatal" not in log  # one after the other
    serves(faulty)
    restarted = faulty.server.project.envgen("ps", "-p", "cpu").out
    assert "generated nothing" in restarted or "wedged" in restarted, restarted
    faulty.server.project.envgen("doctor", "wedged", "-p", "cpu", "--bundle", "wedged.tar.gz", code=None)
    with tarfile.open(faulty.server.project.root / "wedged.tar.gz") as packed:
        files = [packed.extractfile(one) for one in packed.getmembers() if one.isfile()]
        assert any(shown.encode() in file.read() for file in files if file)


@contextmanager
def asleep(faulty: Faulty) -> Iterator[None]:
    faulty.ask("/sleep?level=1", {})
    yield
    faulty.ask("/wake_up", {})


@contextmanager
def paused(faulty: Faulty) -> Iterator[None]:
    faulty.ask("/pause?mode=keep", {})
    yield
    faulty.ask("/resume", {})


@contextmanager
def compiling(faulty: Faulty) -> Iterator[None]:
    """A kernel that the next request needs."""
    faulty.fault("compile", on=True)
    with asked(faulty):
        yield
        faulty.fault("compile", on=False)


@contextmanager
def debugged(faulty: Faulty) -> Iterator[None]:
    """The debugger is a program of this machine, which the container can't see."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    pid = faulty.pid("EngineCore")
    assert ptrace(ATTACH, pid, None, None) == 0
    os.waitpid(pid, ALL_THREADS)
    try:
        yield
    finally:
        ptrace(DETACH, pid, None, None)


@contextmanager
def asked(faulty: Faulty) -> Iterator[None]:
    """A request whose answer takes as long as the block."""
    thread = threading.Thread(target=faulty.completes, args=(600,))
    thread.start()
    yield
    thread.join(600)


@pytest.mark.parametrize("state", [asleep, paused, compiling, debugged])
def test_a_server_that_waits_is_left_alone(
    faulty: Faulty, state: Callable[[Faulty], AbstractContextManager[None]]
) -> None:
    serves(faulty)
    time.sleep(6)  # a check has seen it answer
    before, log = faulty.restarts, len(faulty.log)
    with state(faulty):
        time.sleep(3 * QUIET)
    assert faulty.restarts == before and "wedged" not in faulty.log[log:]
    serves(faulty)


def test_a_prompt_that_takes_minutes_is_progress(faulty: Faulty) -> None:
    """It is read in parts; meanwhile nothing is generated, and the check's own question waits."""
    serves(faulty)
    before, log, began = faulty.restarts, len(faulty.log), time.monotonic()
    # Of the bytes, which each tokenizer of this kind has.
    prompt = random.Random(1).choices(range(10, 250), k=PROMPT)
    assert faulty.completes(1200, prompt, 1)
    assert time.monotonic() - began > 2 * QUIET, "a faster machine needs a longer prompt here"
    assert faulty.restarts == before and "wedged" not in faulty.log[log:]
