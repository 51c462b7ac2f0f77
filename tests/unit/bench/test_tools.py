"""llama-benchy and vllm bench serve: their own reports read to the digit, and a tool that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from envgen.bench import tools
from envgen.bench.client import BenchTarget
from envgen.bench.compare import MatrixCell, table
from envgen.bench.tools import LLAMA_BENCHY, VLLM, BenchTool, CellResult, Matrix
from envgen.engine.values import ExecResult
from envgen.errors import ServiceError, UsageError
from envgen.inside import bench_tool

DATA = Path(__file__).parent / "data"
BENCHY_REPORT = json.loads((DATA / "llama-benchy-0.4.0.json").read_text())
VLLM_REPORT = json.loads((DATA / "vllm-0.30.0.json").read_text())
CELL = MatrixCell(8, 64)


def tool(
    answer: dict[str, Any] | None, name: str = LLAMA_BENCHY, seen: list[Any] | None = None, **more: Any
) -> BenchTool:
    """What stands in is the container alone: the runner's own protocol is spoken."""

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        envelope = json.loads(stdin)
        if seen is not None:
            seen.append(" ".join(envelope["request"].get("words", ())))
        text = "" if answer is None else f"{envelope['mark']} {json.dumps({'answer': answer})}\n"
        return ExecResult(0, text.encode(), b"")

    plan, target = Matrix(runs=3, tool=name), BenchTarget("http://h", "m", **more)
    return BenchTool(plan, target, execute, "http://127.0.0.1:8000", "/models/x", "image x", "0.4.0")


def ran(result: str, code: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "code": code,
        "seconds": 2.0,
        "result": result,
        "tail": ["last"],
        "fell_back": [],
        "drafts": [[], []],
        "meter": [],
        **more,
    }


def test_llama_benchys_own_figures() -> None:
    found = table(tools.benchy_samples(BENCHY_REPORT))
    compared = 0
    for one in BENCHY_REPORT["benchmarks"]:
        for theirs, ours in tools.BENCHY.items():
            metric = one[theirs]
            if one["is_context_prefill_phase"] or not metric:
                continue
            output = one["response_size"] if ours == "decode_tps" else -1
            cell = found[ours, MatrixCell(output, one["prompt_size"], one["context_size"], one["concurrency"])]
            if len(metric["values"]) == len(cell.values):  # a prompt length may be there once for each output length
                assert fmean(cell.values) == pytest.approx(metric["mean"])
                compared += 1
    assert compared >= 6


def test_vllms_own_figures() -> None:
    found = table(tools.vllm_samples(VLLM_REPORT, CELL))
    for ours, theirs in (("ttft_ms", "ttft"), ("itl_ms", "tpot"), ("latency_ms", "e2el")):
        (cell,) = (values for (name, _), values in found.items() if name == ours)
        assert fmean(cell.values) == pytest.approx(VLLM_REPORT[f"mean_{theirs}_ms"], rel=1e-12)
        assert cell.median == pytest.approx(VLLM_REPORT[f"median_{theirs}_ms"], rel=1e-9)
    assert found["total_tps", CELL].median == VLLM_REPORT["output_throughput"]


def test_what_the_tools_are_asked() -> None:
    seen: list[str] = []
    one = tool(ran(json.dumps(BENCHY_REPORT)), seen=seen, key="k")
    one.measure(MatrixCell(32, 2048, 4096, 2))
    for words in (
        "-m llama_benchy --base-url http://127.0.0.1:8000/v1 --model m --tokenizer /models/x --pp 2048 --tg 32 --depth "
        "4096 --concurrency 2 --runs 3", "--no-cache --exact-tg --skip-coherence", "--api-key k",
    ):  # fmt: skip
        assert words in seen[0]
    tool(ran(json.dumps(VLLM_REPORT)), VLLM, seen).measure(MatrixCell(16, 128, 64, 4))
    assert "--backend openai" in seen[1] and "--random-prefix-len 64 --num-prompts 12" in seen[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ran('{"runs": []}'), "results of llama-benchy 0.4.0 at pp64 tg8 can't be read: KeyError: 'benchmarks'"),
        (ran('{"benchmarks": [{"response_size": "x"}]}'), "can't be read: ValueError"), (None, "could not be run"),
    ],
)  # fmt: skip
def test_a_tool_that_goes_wrong(answer: dict[str, Any] | None, message: str) -> None:
    """One that fails, hangs or writes no JSON is in tests/process/test_bench_tool.py, as a process."""
    with pytest.raises(ServiceError, match=message):
        tool(answer).measure(CELL)


def test_a_tool_that_is_missing() -> None:
    for name in ("", LLAMA_BENCHY):
        with pytest.raises(UsageError, match=r"llama-benchy is not in image x\n.*pip.tools"):
            tools.find_tool(tool({"llama-benchy": "", "vllm": "0.32.0" if name else ""}, name))


def test_without_llama_benchy_vllm_measures(capsys: pytest.CaptureFixture[str]) -> None:
    found = tools.find_tool(tool({"llama-benchy": "", "vllm": "0.32.0"}, ""))
    assert (found.plan.tool, found.version) == (VLLM, "0.32.0")
    assert "llama-benchy is not in image x (pip.tools)" in capsys.readouterr().err


def test_the_versions_of_tools() -> None:
    asked = {"a": ("pytest", ["no-such-name", "pytest"]), "b": ("no_such_module", ["pytest"]), "c": ("json", ["json"])}
    found = bench_tool.answer({"verb": "probe", "tools": asked})
    assert found == {"a": pytest.__version__, "b": "", "c": "unknown"}


def report(decode: list[float]) -> str:
    values = {"values": [100.0, 100.0, 100.0]}
    one = {"prompt_size": 64, "response_size": 8, "context_size": 0, "concurrency": 1, "e2e_ttft": values,
           "is_context_prefill_phase": False, "pp_throughput": values,
           "tg_throughput": {"values": decode} if decode else None}  # fmt: skip
    return json.dumps({"benchmarks": [one]})


def test_a_rate_that_is_missing_has_a_reason() -> None:
    rates = [1.0, 2.0, 3.0]
    assert "no decode rate: each reply arrived in one piece" in tool(ran(report([]))).measure(CELL).notes[0]
    assert not tool(ran(report(rates))).measure(CELL).notes
    line = "Falling back to 'gpt2' tokenizer as approximation."
    assert line in tool(ran(report(rates), fell_back=[line])).measure(CELL).notes[0]


def test_requests_without_figures_have_failed() -> None:
    one = tool(ran(report([1.0, 2.0, 3.0])))
    found = replace(one, plan=replace(one.plan, runs=5)).measure(CELL)
    assert (found.failed, found.fault) == (2, "no figures in the tool's results")
    failing = json.dumps({**VLLM_REPORT, "errors": ["Traceback\nHTTP 400: too long", *VLLM_REPORT["errors"][1:]]})
    found = tool(ran(failing), VLLM).measure(CELL)
    assert found.failed and found.fault == "HTTP 400: too long"
    ended = json.dumps({**VLLM_REPORT, "output_lens": [1, *VLLM_REPORT["output_lens"][1:]]})
    found = tool(ran(ended), VLLM).measure(MatrixCell(16, 32))
    assert (found.failed, found.fault) == (1, "a reply has 1 of 16 tokens")


def test_cells_that_do_not_fit_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(tool(ran(report([1.0, 2.0, 3.0])), max_len=200), plan=Matrix(pp=(64, 256), tg=(8,), depth=(0, 400)))
    done: list[CellResult] = []
    assert [str(cell.cell) for cell in tools.measure_all(one, done.append)] == ["pp64 tg8"] and len(done) == 1
    assert capsys.readouterr().err.count("left out") == 3
    with pytest.raises(UsageError, match="the server's context of 200 tokens"):
        tools.measure_all(replace(one, plan=Matrix(pp=(256,))), done.append)


def test_the_matrix() -> None:
    cells = Matrix(depth=(0, 4096), concurrency=(1, 8)).cells()
    assert [str(one) for one in cells] == [
        "pp2048 tg32", "pp2048 tg32 c8", "pp2048 tg32 @ d4096", "pp2048 tg32 @ d4096 c8",
    ]  # fmt: skip
    assert str(MatrixCell(concurrency=8)) == "pp? c8"
