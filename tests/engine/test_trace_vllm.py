"""`envgen trace` of a real vLLM for CPUs: its own profiler, its operators by what they do, for prefill and decode apart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cpu_server import CpuServer
from projects import docker

from envgen.bench import meter
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


# vLLM's own counters of drafts, as its page of metrics prints them.
COUNTED = """\
from types import SimpleNamespace
from prometheus_client import generate_latest
from vllm.v1.spec_decode.metrics import SpecDecodingProm, SpecDecodingStats

counters = SpecDecodingProm(SimpleNamespace(num_speculative_tokens=3), ["model_name", "engine"], {0: ["a b", "0"]})
for drafts in ((3, 0), (1,)):
    stats = SpecDecodingStats.new(3)
    for accepted in drafts:
        stats.observe_draft(num_draft_tokens=3, num_accepted_tokens=accepted)
    counters.observe(stats, 0)
    print(generate_latest().decode(), "\\n# ---")
"""


def test_drafts_are_read_as_vllm_counts_them(cpu_server: CpuServer) -> None:
    """The release's own classes: without Triton it drafts on no CPU (its sampler of rejections ends with a TypeError)."""
    printed = docker("run", "--rm", "-i", "--entrypoint", "python3", cpu_server.image, "-", stdin=COUNTED)
    before, after, _ = (part.splitlines() for part in printed.split("\n# ---"))
    assert meter.of_drafts([], before) == {"accepted_percent": 50.0, "step_tokens": 2.5}
    assert meter.of_drafts(before, after) == {"accepted_percent": pytest.approx(100 / 3), "step_tokens": 2.0}
