"""The runner through a real engine: what goes in on stdin, and what a container without vLLM answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from projects import BASE

from envgen.app.explain import asked
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


def test_a_real_package_says_where_it_raises_a_message(engine: Engine) -> None:
    """torch of the base image; its code is read, and says nothing of a message that it does not have."""
    base = SimpleNamespace(base=SimpleNamespace(python="python3"))
    service = SimpleNamespace(profile=base, temporary_container=lambda: (run.in_image(engine, BASE), []))
    line = "(EngineCore pid=7) ERROR 11-29 12:00:00 [core.py:1] ValueError: expected 4D input (got {}D input)"
    said = asked(service, line.format(3), "torch")  # type: ignore[arg-type]
    assert said.startswith("torch 2.") and "torch/nn/modules/" in said and " if input.dim() != 4" in said
    assert asked(service, line.format(3).replace("expected", "wanted a"), "torch") == ""  # type: ignore[arg-type]
