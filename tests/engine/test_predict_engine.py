"""The runner through a real engine: what goes in on stdin, and what a container without vLLM answers."""

from __future__ import annotations

import pytest
from projects import BASE

from envgen.engine.client import Engine
from envgen.inside import run

pytestmark = pytest.mark.engine
PROGRAM = run.Program("predict/main")
REQUEST = {"words": [], "gpu": {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 1 << 37}, "models": {}}


def test_a_throw_away_container_answers(engine: Engine) -> None:
    found = run.ask(run.in_image(engine, BASE), "python3", PROGRAM, REQUEST, timeout=120)
    assert isinstance(found, dict)
    [why] = found["unasked"]
    assert why["step"] == "import" and "No module named 'vllm'" in why["why"] and found["versions"]["torch"]
