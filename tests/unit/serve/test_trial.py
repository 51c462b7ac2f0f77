"""Judging: figures, criteria, the acceptance list; from results made by hand."""

from __future__ import annotations

import pytest

from envgen.serve.accept import Accepted, Wishes, backends, decode
from envgen.serve.bench import BenchPlan, Cell, measured
from envgen.serve.figures import Figure, figure, rounded_percentile
from envgen.serve.load.generate import Load, Request, Result
from envgen.serve.load.reply import Reply
from envgen.serve.stress import StressPlan, _judge
from envgen.serve.trial import FAILED, PASSED, UNKNOWN, Criterion, faults, sample, worst
from envgen.serve.vitals import Vitals, parse_gpu_memory


def result(*pieces: float, began: float = 0.0, ended: float = 1.0, tokens: int | None = None) -> Result:
    reply = Reply(pieces_at=list(pieces), prompt_tokens=100, output_tokens=tokens if tokens else len(pieces))
    return Result(0, Request(b""), began, began, ended, 200, reply)


def failed(kind: str, sentence: str, status: int = 0) -> Result:
    return Result(0, Request(b""), 0, 0, 1, status, kind=kind, sentence=sentence)


def test_figures_of_one_request() -> None:
    one = result(0.5, 0.6, 0.7, 0.8, 0.9, ended=1.0)
    assert one.ttft == 0.5 and one.latency == 1.0
    assert one.decode_tps == pytest.approx(10) and one.prefill_tps == pytest.approx(200)
    assert sample(one)["itl_ms"] == pytest.approx(100)


def test_several_tokens_in_one_piece() -> None:
    """Speculative decoding: five pieces of two tokens. And a burst at the start took no time, so it has no speed."""
    assert result(0.5, 0.6, 0.7, 0.8, 0.9, tokens=10).decode_tps == pytest.approx(20)
    assert result(0.5, 0.5, 0.5, 0.6, 0.7).decode_tps == pytest.approx(10)
    assert result(0.5, 0.5).decode_tps is None


def test_open_load_counts_from_the_due_time() -> None:
    late = Result(0, Request(b""), due=1.0, began=3.0, ended=4.0, status=200, reply=Reply(pieces_at=[3.5]))
    assert late.latency == 3.0 and late.ttft == 2.5 and sample(late)["late_ms"] == 2000
    assert Load([late], 3.0).lag == 2.0


def test_a_repeat_of_several_requests_together() -> None:
    found = measured(Load([result(0.5, 1.0, 1.5, ended=1.5), result(1.0, 1.5, 2.0, ended=2.0)], 2.0))
    assert found["prefill_tps"] == pytest.approx(200)  # 200 tokens until the last one's first
    assert found["decode_tps"] == pytest.approx(4 / 1.5)
    assert found["total_tps"] == 3 and found["requests_per_s"] == 1
    assert measured(Load([result(0.5), failed("cut", "x")], 1.0)) == {}


def test_mean_deviation_and_spread() -> None:
    found = figure([29.0, None, 31.0])
    assert found is not None and (found.mean, len(found.values)) == (30, 2)
    assert found.sd == pytest.approx(2**0.5) and found.cv == pytest.approx(2**0.5 / 30)
    assert str(Figure((29.0,))) == "29.00 ± 0.00" and figure([None]) is None
    assert rounded_percentile([3, 1, 2, 4], 50) == 2.5 and rounded_percentile([1], 99) == 1
    assert rounded_percentile([], 50) is None


def test_faults_are_counted_by_kind() -> None:
    told = faults([failed("cut", "a"), failed("status", "b", 500), failed("cut", "c"), result(0.1)])
    assert told == "2x a; 1x b" and faults([result(0.1)]) == ""


def vitals(memory: int = 10, zombies: tuple[str, ...] = (), restarts: int = 0, gpu: int | None = None) -> Vitals:
    return Vitals(memory, gpu, 3, zombies, restarts, "t")


def verdicts(found: list[Criterion]) -> dict[str, str]:
    return {one.name: one.verdict for one in found}


def test_stress_is_red_where_it_should_be() -> None:
    good = Load([result(0.1)], 1.0)
    assert set(verdicts(_judge(good, vitals(), vitals())).values()) == {PASSED}
    bad = Load([result(0.1), failed("status", "answered with 503: x", 503), failed("cut", "y", 200)], 1.0)
    found = verdicts(_judge(bad, vitals(), vitals(zombies=("python3 (7)",), memory=6 * 10**9, restarts=1)))
    assert set(found.values()) == {FAILED}
    grown = verdicts(_judge(good, vitals(gpu=0), vitals(gpu=5 * 10**9)))
    assert grown["memory growth"] == FAILED  # the GPU's memory counts
    unknown = _judge(good, None, None)
    assert verdicts(unknown)["zombie processes"] == UNKNOWN and worst(unknown) == PASSED


def test_gpu_memory() -> None:
    assert parse_gpu_memory("1024\n 512\n") == 1536 << 20
    assert parse_gpu_memory("[N/A]\n") is None and parse_gpu_memory("") is None


def cell(speed: float, failed: int = 0) -> Cell:
    return Cell(64, 32, 1, {"decode_tps": Figure((speed,))}, 64, 32, (), failed, "x" if failed else "", 0)


def wishes(explanation: str = "", **references: float) -> Wishes:
    return Wishes(StressPlan(), BenchPlan(), references, 0.2, explanation)


def test_decode_against_references() -> None:
    assert verdicts(decode([cell(47)], wishes(llama=58, SGLang=52))) == {
        "decode throughput against llama": PASSED, "decode throughput against SGLang": PASSED,
    }  # fmt: skip
    (slow,) = decode([cell(29)], wishes(llama=58))
    assert slow.verdict == FAILED and slow.wanted == "at least 46.40 t/s: llama has 58.00, less 20%"
    (explained,) = decode([cell(29)], wishes("lm_head is BF16", llama=58))
    assert explained.verdict == PASSED and "lm_head is BF16" in explained.note
    assert decode([cell(29)], wishes())[0].verdict == UNKNOWN
    assert decode([cell(99, failed=1)], wishes(llama=58))[0].verdict == FAILED
    assert decode([], wishes(llama=58))[0].verdict == UNKNOWN


def test_backends_in_the_log() -> None:
    log = "Using FLASHINFER attention\nYour GPU does not have native support for FP4 computation\n"
    found = backends({"attention": "FLASHINFER", "moe": "CUTLASS"}, {"marlin": "native support for FP4"}, log)
    assert [one.verdict for one in found] == [PASSED, FAILED, FAILED]
    assert backends({"a": "b"}, None, None)[0].verdict == UNKNOWN
    assert backends({}, {}, log)[0].verdict == UNKNOWN


def test_what_was_not_checked_is_not_accepted() -> None:
    good, unknown = Criterion("a", PASSED, "", ""), Criterion("b", UNKNOWN, "", "")
    assert Accepted((("x", good),), (), {}).verdict == PASSED
    assert Accepted((("x", good), ("y", unknown)), (), {}).verdict == FAILED
