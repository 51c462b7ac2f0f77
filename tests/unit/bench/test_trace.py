"""Where a server writes its traces, and the layout that its arguments name."""

from __future__ import annotations

import pytest

from envgen.bench.checks import folder_of
from envgen.bench.facts import nodes
from envgen.errors import UsageError


def test_the_folder_of_traces() -> None:
    assert folder_of(["--profiler-config", '{"profiler": "torch", "torch_profiler_dir": "/t"}'], {}) == "/t"
    assert folder_of(["--profiler-config.torch_profiler_dir=/t", "--port", "1"], {}) == "/t"
    assert folder_of(["serve", "m"], {"VLLM_TORCH_PROFILER_DIR": "/t"}) == "/t"


@pytest.mark.parametrize("given", ["", "null", "{", '{"profiler": "cuda"}', '{"torch_profiler_dir": "gs://t"}'])
def test_a_server_without_torch_s_profiler(given: str) -> None:
    with pytest.raises(UsageError, match="without torch's profiler"):
        folder_of(["serve", "m", "--profiler-config", given], {})


def test_the_layout_of_nodes() -> None:
    assert nodes(["serve", "m"]) == {"machines": "1"}
    two = ["serve", "m", "--nnodes", "2", "--node-rank=0", "--tensor-parallel-size", "2"]
    assert nodes(two) == {"machines": "2", "node-rank": "0", "tensor-parallel-size": "2"}
    assert nodes(["--distributed-executor-backend", "ray"]) == {"machines": "unknown (ray)"}
