"""`envgen trace` of a real vLLM for CPUs: its own profiler, its operators by what they do, for prefill and decode apart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cpu_server import CpuServer
from projects import docker

from envgen.bench.trace import rows_of

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

REPLY = 8


def test_each_phase_names_what_a_real_server_ran(cpu_server: CpuServer) -> None:
    project = cpu_server.project
    command = ("docker", "inspect", "-f", "{{json .Args}}")
    before = docker(*command[1:], cpu_server.container)
    words = ("trace", "serve", "-p", "cpu", "--pp", "64", "--tg", str(REPLY), "--yes", "--json")
    done = project.envgen(*words).json

    calls = {}
    for phase, summary in done["phases"].items():
        kinds = {row.name: row for row, _ in rows_of(summary)}
        assert {"attention", "linear", "norm", "rotary"} <= set(kinds), kinds
        assert summary["device"] == "cpu" and 0 < summary["busy_us"] <= summary["wall_us"]
        calls[phase] = kinds["attention"].calls
    # The prompt is read in one step, which gives the first token; each other token is a step.
    assert calls["decode"] == (REPLY - 1) * calls["prefill"]

    raw = Path(done["record"]).with_suffix(".raw")
    for phase in ("prefill", "decode"):
        assert json.loads(gzip.decompress((raw / f"{phase}.json.gz").read_bytes()))["traceEvents"]
    # The service runs as before.
    assert cpu_server.answers() and docker(*command[1:], cpu_server.container) == before
    assert "profiler" not in before
    # What ran is proof for this image and these settings from now on.
    (told,) = project.envgen("up", "serve", "-p", "cpu", "--json").json["ran"]
    assert told.startswith("attention ran: CPU_ATTN, in the trace of 2") and "cpu_attention" in told
    rows = project.envgen("doctor", "serve", "-p", "cpu", "--json", code=None).json["findings"]
    assert [row["title"] for row in rows if row["check"] == "container.kernels"] == [told]


# 0.30.0 replaces a name that its launcher has read before; with this it drafts on a CPU, greedily, a token at a time.
DRAFTS = """\
import vllm.utils.cpu_triton_utils as cpu
import vllm.v1.sample.rejection_sampler as sampler
sampler._rejection_greedy_sample.kernel = cpu.rejection_greedy_sample_kernel
class Drafts: ...
"""
DRAFTING = {
    "args.speculative-config": {"method": "draft_model", "model": "/models/tiny", "num_speculative_tokens": 1},
    "args.override-generation-config": {"temperature": 0}, "working_dir": "/models",
    "args.worker-extension-cls": "drafts.Drafts",
}  # fmt: skip


def test_drafts_of_a_real_server(cpu_server: CpuServer) -> None:
    (cpu_server.project.root / "models" / "drafts.py").write_text(DRAFTS)
    envgen, up = cpu_server.project.envgen, ("up", "serve", "-p", "cpu", "--recreate")
    bench = ("bench", "serve", "-p", "cpu", "--tool", "vllm", "--pp", "32", "--tg", "16", "-r", "3", "--json")
    sets = [word for key, value in DRAFTING.items() for word in ("--set", f"services.serve.{key}={json.dumps(value)}")]
    envgen(*up, *sets)
    (cell,) = envgen(*bench, *sets).json["cells"]
    envgen(*up)
    assert cell["beside"] == {"accepted_percent": 100.0, "step_tokens": 2.0} and cell["failed"] == 0
