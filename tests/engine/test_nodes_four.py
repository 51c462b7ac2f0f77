"""Four machines on one cable: what is compared, started, watched and stopped is the same as with two.

A server stands in for vLLM, as in pair.py: four of vLLM's would take minutes here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import IMAGE, SERVER, Pair, failed, machines_up, project, small_image
from projects import BASE

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

NUMBERS = {f"spark-{place + 1}": 217 + place for place in range(4)}
CONTAINER = "envgentest-pair-cpu-serve-1"


@pytest.fixture(scope="module")
def four(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("four")
    project(folder, *NUMBERS)
    small_image(BASE, IMAGE, folder / "small.tar", SERVER, folder)
    with machines_up(Path(f"/tmp/envgentest-four-{os.getpid()}"), NUMBERS, folder / "small.tar") as made:
        project(made.folder, *NUMBERS)
        made.write()
        for name in NUMBERS:
            model = made.folder / "models" / name / "tiny"
            model.mkdir(parents=True)
            (model / "model.safetensors").write_bytes(b"the same")
        yield made


def test_four_machines_fit_serve_and_end_together(four: Pair) -> None:
    blocked = ["INPUT", "-s", f"192.168.177.{NUMBERS['spark-3']}", "-p", "tcp", "--syn", "-j", "DROP"]
    four.inside("spark-4", "iptables", "-A", *blocked)  # between two workers: the head sees nothing of it
    try:
        other = four.folder / "models/spark-3/tiny/model.safetensors"
        other.write_bytes(b"another")
        found = failed(four.check(6))
    finally:
        four.inside("spark-4", "iptables", "-D", *blocked)
        other.write_bytes(b"the same")
    target = f"192.168.177.{NUMBERS['spark-4']}"
    assert found == [
        "spark-1+spark-3: the model differs in model.safetensors",
        f"spark-3+spark-4: spark-3 -> spark-4 ({target}): a TCP port cannot be reached: timed out",
    ]

    argv = [sys.executable, "-m", "envgen", "up", "serve", "--stay"]
    text, running = "", list[str]()
    with subprocess.Popen(argv, cwd=four.folder, env=four.env, stderr=subprocess.PIPE, text=True) as staying:
        try:
            assert staying.stderr is not None
            for line in staying.stderr:
                text += line
                if line.startswith("watching"):
                    running = four.running()
                    four.docker("spark-3", "kill", CONTAINER)
            code = staying.wait(120)
        finally:
            staying.kill()
    assert running == [*NUMBERS], text
    assert code == 5 and "spark-3 (rank 2): serve has failed: its process exited with code 137" in text
    assert four.running() == []
