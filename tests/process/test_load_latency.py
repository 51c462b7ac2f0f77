"""The load generator against a server of known latency (benchmarks/latency_stub.py, a process of its own)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envgen.serve.load.connection import address
from envgen.serve.load.generate import Load, Request, run_closed, run_open

pytestmark = pytest.mark.engine

STUB = Path(__file__).parents[2] / "benchmarks" / "latency_stub.py"


@contextmanager
def stub(port: int, first: float, gap: float, tokens: int) -> Iterator[str]:
    words = [sys.executable, str(STUB), str(port), str(first), str(gap), str(tokens)]
    with subprocess.Popen(words) as child:
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    urllib.request.urlopen(f"{url}/stats", timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield url
        finally:
            child.kill()


def took(url: str) -> list[float]:
    """How long each reply took by the stub's own clock."""
    with urllib.request.urlopen(f"{url}/stats", timeout=5) as reply:
        found: list[float] = json.load(reply)
        return found


def requests(url: str, count: int) -> list[Request]:
    where = address(url)
    return [Request(where.request("/v1/completions", b'{"model":"stub","stream":true}'))] * count


def check(load: Load, count: int, tokens: int) -> None:
    assert len(load.results) == count and all(one.good for one in load.results)
    assert {one.output_tokens for one in load.results} == {tokens}


def test_no_time_is_shorter_than_the_servers_own(free_port: int) -> None:
    """A stub that waits gives lower limits; how little is added on top is measured in benchmarks/load.py."""
    with stub(free_port, 0.1, 0.02, 11) as url:
        load = run_closed(address(url), requests(url, 32), 8, silence=10)
        real = took(url)
    check(load, 32, 11)
    assert min(one.ttft or 0 for one in load.results) >= 0.1
    assert min(one.latency for one in load.results) >= 0.1 + 10 * 0.02
    assert max(one.latency for one in load.results) >= max(real)


def test_64_streams_at_a_time(free_port: int) -> None:
    with stub(free_port, 0.2, 0.04, 20) as url:
        check(run_closed(address(url), requests(url, 192), 64, silence=10), 192, 20)


def test_open_load_is_never_early(free_port: int) -> None:
    with stub(free_port, 0.05, 0, 1) as url:
        even = run_open(address(url), requests(url, 40), 40, silence=10)
    check(even, 40, 1)
    assert even.seconds >= 39 / 40
    began = sorted(one.began for one in even.results)
    assert began[-1] - began[0] >= 39 / 40 - 0.001


def test_a_stall_shows_in_every_request_that_was_due(free_port: int) -> None:
    with (
        stub(free_port, 0.02, 0, 1) as url,
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import os, signal, sys, time; time.sleep(1); pid = int(sys.argv[1]); "
                "os.kill(pid, signal.SIGSTOP); time.sleep(1); os.kill(pid, signal.SIGCONT)",
                str(child_of(free_port)),
            ],
        ),
    ):
        load = run_open(address(url), requests(url, 100), 50, silence=10)
    check(load, 100, 1)
    # For one second, 50 requests were due: they waited 1, 0.98, 0.96 ... seconds. Closed load would have seen one.
    slow = sorted(one.latency for one in load.results)
    assert sum(latency > 0.1 for latency in slow) > 35
    assert slow[-1] > 0.8


def child_of(port: int) -> int:
    """The stub's process: the one with its port among its words."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(STUB).encode() in words and str(port).encode() in words:
            return int(folder.name)
    raise AssertionError("the stub does not run")
