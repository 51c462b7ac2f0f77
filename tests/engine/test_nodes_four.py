"""Four machines on one cable: what is compared, started, watched and stopped is the same as with two.

A server stands in for vLLM, as in pair.py: four of vLLM's would take minutes here.
"""

from __future__ import annotations

import pytest
from pair import FOUR, Pair, failed, staying

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

CONTAINER = "envgentest-four-cpu-serve-1"


def test_four_machines_fit_serve_and_end_together(four: Pair) -> None:
    four.write()
    for name in FOUR:
        model = four.folder / "models" / name / "tiny"
        model.mkdir(parents=True)
        (model / "model.safetensors").write_bytes(b"the same")
    blocked = ["INPUT", "-s", f"192.168.177.{FOUR['spark-3']}", "-p", "tcp", "--syn", "-j", "DROP"]
    four.inside("spark-4", "iptables", "-A", *blocked)  # between two workers: the head sees nothing of it
    try:
        other = four.folder / "models/spark-3/tiny/model.safetensors"
        other.write_bytes(b"another")
        found = failed(four.check(6))
    finally:
        four.inside("spark-4", "iptables", "-D", *blocked)
        other.write_bytes(b"the same")
    target = f"192.168.177.{FOUR['spark-4']}"
    assert found == [
        "spark-1+spark-3: the model differs in model.safetensors",
        f"spark-3+spark-4: spark-3 -> spark-4 ({target}): a TCP port cannot be reached: timed out",
    ]

    with staying(four) as one:
        one.sees("watching serve")
        running = four.running()
        four.docker("spark-3", "kill", CONTAINER)
        text = one.ends()
    assert running == [*FOUR], text
    assert "spark-3 (rank 2): serve has failed: its process was killed (SIGKILL): it exited with code 137" in text
    assert four.running() == []
