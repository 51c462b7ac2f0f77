"""`envgen trace` of a real vLLM for CPUs: its own profiler, its operators by what they do, for prefill and decode apart."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


# What a log may claim, whatever runs: written by the server itself, as a fallback that nobody notices would.
CLAIM = """\
import vllm.logger
vllm.logger.init_logger("vllm.claim").info("Using TRITON_ATTN backend.")
class Claim: ...
"""
CLAIMING = {
    "args.worker-extension-cls": "claim.Claim", "working_dir": "/models",
    "ready.expect": {"attention": "Using TRITON_ATTN backend"},
}  # fmt: skip


def set_of(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"services.serve.{key}={json.dumps(value)}")]


def test_what_ran_denies_what_a_real_servers_log_claims(cpu_server: CpuServer) -> None:
    (cpu_server.project.root / "models" / "claim.py").write_text(CLAIM)
    envgen = cpu_server.project.envgen
    service, sets = ("serve", "-p", "cpu"), set_of(CLAIMING)
    try:
        ready = envgen("up", *service, "--recreate", "--json", *sets).json  # the log has what `ready.expect` wants
        assert "ran" not in ready or not ready["ran"]
        envgen("trace", *service, "--pp", "64", "--tg", "4", "--yes", *sets)
        (told,) = envgen("up", *service, "--json", *sets).json["ran"]
        assert told.startswith("attention ran: CPU_ATTN, not TRITON_ATTN, in the trace of 2")
        rows = envgen("doctor", *service, "--json", *sets, code=None).json["findings"]
        (row,) = [row for row in rows if row["check"] == "container.kernels"]
        assert row["severity"] == "warning" and told in row["title"] + str(row["seen"])
        checks = envgen("smoke", *service, "--full", "--json", *sets, code=1).json["criteria"]
        (failed,) = [row for row in checks if row["name"] == "trace"]
        assert failed["verdict"] == "failed" and failed["seen"] == told
    finally:
        envgen("up", *service, "--recreate")


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
    sets = set_of(DRAFTING)
    envgen(*up, *sets)
    (cell,) = envgen(*bench, *sets).json["cells"]
    envgen(*up)
    assert cell["beside"] == {"accepted_percent": 100.0, "step_tokens": 2.0} and cell["failed"] == 0


def test_drafts_from_the_words_of_the_prompt(cpu_server: CpuServer) -> None:
    """vLLM's ngram, which needs numba; the image leaves it out."""
    folder = cpu_server.project.root / "models" / "packages"
    words = [
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--python-version",
        "3.11",
        "--target",
        str(folder),
        "numba",
        "llvmlite",
    ]
    subprocess.run([sys.executable, "-m", "uv", *words], check=True)
    (folder / "drafts.py").write_text(DRAFTS)
    envgen, up = cpu_server.project.envgen, ("up", "serve", "-p", "cpu", "--recreate")
    bench = ("bench", "serve", "-p", "cpu", "--tool", "vllm", "--pp", "64", "--tg", "64", "-r", "3", "--json")
    drafts = {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    sets = set_of(DRAFTING | {"args.speculative-config": drafts, "working_dir": "/models/packages"})
    envgen(*up, *sets)
    (cell,) = envgen(*bench, *sets).json["cells"]
    envgen(*up)
    beside = cell["beside"]
    assert 0 < beside["accepted_percent"] <= 100 and 1 < beside["step_tokens"] <= 2 and cell["failed"] == 0
