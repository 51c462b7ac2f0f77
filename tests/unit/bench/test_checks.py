"""The verdicts: throughput against references, limits of latency, what a log shows, what a load left behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from envgen.app import measure
from envgen.app.session import Session
from envgen.bench import checks
from envgen.bench.checks import Requirements
from envgen.bench.client import BenchTarget, Replies, Reply
from envgen.bench.compare import MatrixCell, table
from envgen.bench.facts import Vitals, parse_gpu_memory
from envgen.bench.tools import CellResult
from envgen.errors import ServiceError
from envgen.serve.events import Completion

HERE = {"prompt_tokens": 2048, "output_tokens": 32}
LLAMA = {
    "llama.cpp": table([
        {**HERE, "prefill_tps": 2449.83, "decode_tps": 57.85},
        {**HERE, "context_tokens": 32768, "prefill_tps": 1404.70, "decode_tps": 41.72},
    ])
}  # fmt: skip
SLOW = {"x": table([{**HERE, "decode_tps": 5.0}])}


def cell(depth: int = 0, failed: int = 0, notes: tuple[str, ...] = (), **figures: float) -> CellResult:
    asked = MatrixCell(32, 2048, depth)
    samples = [{"unit": "repeat", **asked.sample, name: value} for name, value in figures.items()]
    return CellResult(asked, tuple(samples), 1.0, failed, "HTTP 500" if failed else "", notes)


def verdicts(criteria: list[checks.Criterion]) -> list[tuple[str, str]]:
    return [(one.name, one.verdict) for one in criteria]


def test_throughput_against_a_reference_depth_by_depth() -> None:
    cells = [cell(decode_tps=50.0, prefill_tps=4000.0), cell(32768, decode_tps=26.65)]
    found = checks.throughput(cells, Requirements(LLAMA))
    assert verdicts(found) == [
        ("prefill of pp2048 tg32 against llama.cpp", "passed"),
        ("decode of pp2048 tg32 against llama.cpp", "passed"),
        ("prefill of pp2048 tg32 @ d32768 against llama.cpp", "not checked"),
        ("decode of pp2048 tg32 @ d32768 against llama.cpp", "failed"),
    ]
    assert found[3].wanted == "at least 33.38 t/s: llama.cpp has 41.72, less 20%"


def test_no_reference_no_rate_and_failed_requests() -> None:
    other = cell(5, decode_tps=99.0)  # no engine was measured at this depth
    (found,) = checks.throughput([other], Requirements(LLAMA))
    assert (found.verdict, found.seen) == ("not checked", "llama.cpp has no figure of pp2048 tg32 @ d5")
    assert checks.throughput([cell(decode_tps=1.0)], Requirements())[0].verdict == "not checked"
    (found,) = checks.throughput([cell(notes=("one piece",))], Requirements(SLOW))
    assert (found.verdict, found.seen) == ("not checked", "one piece")
    (found,) = checks.throughput([cell(reply_tps=5.0)], Requirements(SLOW))  # a reply in one piece
    assert found.verdict == "passed" and "prefill included" in found.note
    (found,) = checks.throughput([cell(failed=2, decode_tps=99.0)], Requirements(LLAMA))
    assert (found.verdict, found.seen) == ("failed", "2 requests failed: HTTP 500")


def test_limits_of_latency() -> None:
    replies = [Reply(answer=Completion(first=first)) for first in (0.08, 0.12, 0.09)]
    cells = [cell(decode_tps=60.0), cell(4096, decode_tps=40.0)]
    found = checks.latency(cells, replies, Requirements(max_ttft=100, max_per_token=20))
    assert verdicts(found) == [("first token of a short prompt", "passed"), ("time per token", "failed")]
    assert found[1].seen == "25.0 ms (pp2048 tg32 @ d4096)"
    unknown = checks.latency([cell()], [], Requirements(max_ttft=100, max_per_token=20))
    assert [one.verdict for one in unknown] == ["not checked"] * 2 and checks.latency(
        cells, replies, Requirements()
    ) == []


LOG = "Using TRITON_ATTN backend\nGraph capturing finished in 3 secs, took 0.5 GiB\n"


@pytest.mark.parametrize(
    ("log", "flags", "gpu", "verdict"),
    [
        (LOG, [], True, "passed"), ("Using TRITON_ATTN backend", ["--enforce-eager"], True, "passed"),
        ("Using TRITON_ATTN backend", [], True, "failed"),
    ],
)  # fmt: skip
def test_graphs_are_proven_by_the_log(log: str, flags: list[str], gpu: bool, verdict: str) -> None:
    required = Requirements(expect={"attention": "TRITON_ATTN"}, forbid={"fallback": "falling back"})
    found = dict(verdicts(checks.log_shows(required, log, flags, gpu)))
    assert found["CUDA graphs captured"] == verdict
    assert found["log shows attention"] == found["log is free of fallback"] == "passed"


def test_a_log_that_is_not_known_or_lacks_a_line() -> None:
    assert checks.log_shows(Requirements(), None, [], True)[0].verdict == "not checked"
    assert verdicts(checks.log_shows(Requirements(), LOG, [], False)) == [("backends in the log", "not checked")]
    wrong = checks.log_shows(Requirements(expect={"a": "FLASHINFER"}), LOG, [], False)
    assert (wrong[0].verdict, wrong[0].seen) == ("failed", "no such line")


def vitals(**changes: Any) -> Vitals:
    return Vitals(**{"memory": 1, "gpu_memory": None, "zombies": (), "restarts": 0, "started_at": "t"} | changes)


def test_what_a_load_left_behind() -> None:
    good, bad = (
        Reply(status=200, ended=1.0, answer=Completion(first=0.5)),
        Reply(status=500, kind="status", fault="answered with 500"),
    )
    load = Replies([good, bad, bad], 2.0)
    assert load.faults == "2x answered with 500"
    after = vitals(memory=6_000_000_000, zombies=("sh (7)",), restarts=1)
    found = dict(verdicts(checks.judge_load(load, vitals(), after)))
    assert set(found.values()) == {"failed"} and len(found) == 4
    assert {v for _, v in verdicts(checks.judge_load(Replies([good], 1.0), vitals(), vitals(memory=9)))} == {"passed"}
    assert checks.summary_of(load)["requests_per_s"] == 0.5


def test_a_run_that_fails_has_one_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_server: Any, trial: checks.Trial, _run: Any) -> NoReturn:
        trial.record({"unit": "repeat"})
        raise ServiceError("the tool failed", hint="try another")

    monkeypatch.setattr(measure, "find", lambda url, **_: BenchTarget(url, "m"))
    asked = measure.Asked(Session(), None, "http://h", None, None, None, 1, tmp_path)
    with pytest.raises(ServiceError) as caught:
        measure.measure(asked, "bench", {}, work)
    assert re.fullmatch(r"the tool failed\n  the results so far are in .*\n +hint: try another", str(caught.value))


def test_strict_and_not() -> None:
    one = checks.Criterion("a", checks.UNKNOWN, "", "")
    assert (checks.outcome([one])[0], checks.outcome([one], strict=True)[0]) == ("passed", "failed")


@pytest.mark.parametrize(("text", "size"), [("512\n1024\n", 1536 << 20), ("[N/A]\n", None), ("", None)])
def test_gpu_memory(text: str, size: int | None) -> None:
    assert parse_gpu_memory(text) == size
