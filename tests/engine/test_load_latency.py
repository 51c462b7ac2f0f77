"""The load generator against a server of known latency (benchmarks/latency_stub.py, a process of its own)."""

from __future__ import annotations

import itertools
import json
import statistics
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


def test_times_are_those_of_the_server(free_port: int) -> None:
    with stub(free_port, 0.1, 0.02, 11) as url:
        load = run_closed(address(url), requests(url, 32), 8, silence=10)
        real = took(url)
    check(load, 32, 11)
    assert statistics.median(one.ttft or 0 for one in load.results) == pytest.approx(0.1, abs=0.01)
    assert statistics.median(gap for one in load.results for gap in one.gaps) == pytest.approx(0.02, abs=0.002)
    assert statistics.median(one.latency for one in load.results) == pytest.approx(statistics.median(real), abs=0.01)
    speeds = [one.decode_tps or 0 for one in load.results]
    assert statistics.median(speeds) == pytest.approx(50, rel=0.05)


def test_64_streams_cost_little(free_port: int) -> None:
    """The bound of 2 % is measured in benchmarks/load.py; beside other work on the machine, 5 % is a defect."""
    with stub(free_port, 0.2, 0.04, 20) as url:
        run_closed(address(url), requests(url, 64), 64, silence=10)  # connections are open, code is warm
        took(url)
        load = run_closed(address(url), requests(url, 192), 64, silence=10)
        real = took(url)
    check(load, 192, 20)
    assert statistics.median(one.latency for one in load.results) / statistics.median(real) < 1.05


def test_open_load_keeps_its_times(free_port: int) -> None:
    with stub(free_port, 0.05, 0, 1) as url:
        even = run_open(address(url), requests(url, 40), 40, silence=10)
    check(even, 40, 1)
    assert even.seconds == pytest.approx(39 / 40 + 0.05, abs=0.15)
    began = [one.began for one in even.results]
    assert statistics.median(b - a for a, b in itertools.pairwise(began)) == pytest.approx(0.025, abs=0.005)


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
