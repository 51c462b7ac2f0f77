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
        "ended": ['{"total_tokens": 8, "error": ""}'] * 3,
        **more,
    }


def test_llama_benchys_own_figures() -> None:
    compared = 0
    for one in BENCHY_REPORT["benchmarks"]:
        asked = MatrixCell(one["response_size"], one["prompt_size"], one["context_size"], one["concurrency"])
        found = table(tools.benchy_samples({"benchmarks": [one]}, asked))
        for theirs, ours in tools.BENCHY.items():
            metric = one[theirs]
            if one["is_context_prefill_phase"] or not metric:
                continue
            cell = found[ours, asked if ours == "decode_tps" else replace(asked, output=-1)]
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
        "-m llama_benchy --base-url http://127.0.0.1:8000/v1 --api-key k --pp 2048 --tg 32 --depth "
        "4096 --concurrency 2 --runs 3", "--no-cache --exact-tg --skip-coherence", "--model m --tokenizer /models/x",
    ):  # fmt: skip
        assert words in seen[0]
    tool(ran(json.dumps(VLLM_REPORT)), VLLM, seen).measure(MatrixCell(16, 128, 64, 4))
    assert "--backend openai" in seen[1] and "--random-prefix-len 64 --num-prompts 12" in seen[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ran('{"runs": []}'), "results of llama-benchy 0.4.0 at pp64 tg8 can't be read: KeyError: 'benchmarks'"),
        (ran('{"benchmarks": ["x"]}'), "can't be read: AttributeError"), (None, "could not be run"),
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
    for rates_left, text in (([], "a decode rate in 0 of 3 runs"), ([1.0, 1e6], "a decode rate in 1 of 3 runs")):
        lacking = tool(ran(report(rates_left))).measure(CELL)
        assert text in lacking.notes[0] and text in lacking.fault and not lacking.failed
    assert not tool(ran(report(rates))).measure(CELL).notes
    line = "Falling back to 'gpt2' tokenizer as approximation."
    assert line in tool(ran(report(rates), fell_back=[line])).measure(CELL).notes[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0, 0.0, "12.5", None])
def test_what_is_no_figure_is_not_left_out(value: Any) -> None:
    broken = report([1.0, 2.0, value]), json.dumps({**VLLM_REPORT, "output_throughput": value})
    later = json.dumps({**VLLM_REPORT, "ttfts": [*VLLM_REPORT["ttfts"][1:], value]})
    for text, name in zip((*broken, later), (LLAMA_BENCHY, VLLM, VLLM), strict=True):
        with pytest.raises(ServiceError, match="is not a figure"):
            tool(ran(text), name).measure(MatrixCell(16, 32))


@pytest.mark.parametrize(
    ("tokens", "error", "failed", "fault"),
    [
        (8, "", 0, ""), (5, "", 0, ""), (1, "", 1, "a reply has 1 of 8 tokens"), (80, "", 1, "a reply has 80 of 8 tokens"),
        (0, "HTTP 503: no", 1, "HTTP 503: no"),
    ],
)  # fmt: skip
def test_how_llama_benchys_requests_ended(tokens: int, error: str, failed: int, fault: str) -> None:
    ended = [json.dumps({"total_tokens": count, "error": text}) for count, text in ((8, ""), (tokens, error))]
    found = tool(ran(report([1.0, 2.0, 3.0]), ended=ended)).measure(CELL)
    assert (found.failed, found.fault) == (failed, fault) and found.notes == (
        ("a reply has 5 of 8 tokens",) * (tokens == 5)
    )


def test_a_reply_that_was_held_back_has_no_rate() -> None:
    """A proxy that sends all at once makes 300,000 tokens a second of it."""
    for gaps in ([1e-5] * 15, [0.01]):
        held = json.dumps({**VLLM_REPORT, "itls": [gaps] * 3})
        found = tool(ran(held), VLLM).measure(MatrixCell(16, 32))
        assert "decode_tps" not in found.figures and "a decode rate in 0 of 3 runs" in found.fault


def test_requests_without_figures_have_failed() -> None:
    one = tool(ran(report([1.0, 2.0, 3.0])))
    found = replace(one, plan=replace(one.plan, runs=5)).measure(CELL)
    assert (found.failed, found.fault) == (2, "no figures in the tool's results")
    failing = json.dumps({**VLLM_REPORT, "errors": ["Traceback\nHTTP 400: too long", *VLLM_REPORT["errors"][1:]]})
    found = tool(ran(failing), VLLM).measure(MatrixCell(16, 32))
    assert found.failed and found.fault == "HTTP 400: too long"
    for length in (1, 160):
        ended = json.dumps({**VLLM_REPORT, "output_lens": [length, *VLLM_REPORT["output_lens"][1:]]})
        found = tool(ran(ended), VLLM).measure(MatrixCell(16, 32))
        assert (found.failed, found.fault) == (1, f"a reply has {length} of 16 tokens")


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
