"""llama-benchy's results, from a report that llama-benchy 0.4.0 wrote about a real vLLM (shortened)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.errors import ServiceError
from envgen.serve import benchy_inside
from envgen.serve.benchy import book, read_report, samples

REPORT = Path(__file__).parent / "data" / "llama-benchy-0.4.0.json"


def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return found


def test_a_real_report() -> None:
    cells, told = read_report(report())
    assert told["version"] == "0.4.0" and told["latency_mode"] == "generation"
    first, second = cells
    assert (first.prompt_tokens, first.output_tokens, first.concurrency, second.concurrency) == (64, 16, 1, 2)
    theirs = report()["benchmarks"][0]["tg_throughput"]
    assert first.figures["decode_tps"].values == tuple(theirs["values"])
    assert first.figures["decode_tps"].mean == pytest.approx(theirs["mean"])
    assert set(first.figures) == {"prefill_tps", "decode_tps", "ttfr_ms", "ttft_ms"}


def test_each_repeat_becomes_a_sample() -> None:
    cells, _ = read_report(report())
    found = samples(cells[0])
    assert [one["repeat"] for one in found] == [0, 1] and {one["unit"] for one in found} == {"repeat"}
    assert [one["decode_tps"] for one in found] == [round(v, 3) for v in cells[0].figures["decode_tps"].values]


def test_a_cell_without_results() -> None:
    broken = report()
    broken["benchmarks"][0]["tg_throughput"] = None
    broken["benchmarks"][1]["is_context_prefill_phase"] = True
    (cell,) = read_report(broken)[0]
    assert "decode_tps" not in cell.figures


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["benchmarks", "prompt_size", "tg_throughput", "values"]), inner, max_size=3),
                    max_leaves=10))  # fmt: skip
def test_another_form_is_one_sentence(document: object) -> None:
    try:
        read_report(document)
    except ServiceError as error:
        assert "llama-benchy's results can't be read" in str(error)


def test_the_command() -> None:
    asked = {
        "base_url": "http://127.0.0.1:8000/v1", "model": "m", "tokenizer": "/models/m", "pp": [64, 128], "tg": [16],
        "concurrency": [1], "runs": 3, "latency_mode": "generation",
    }  # fmt: skip
    words = benchy_inside.arguments(asked, "http://book", "/tmp/x.json")
    assert words[1:3] == ["-m", "llama_benchy"]
    assert words[words.index("--pp") + 1 : words.index("--tg")] == ["64", "128"]
    assert words[-4:] == ["--save-result", "/tmp/x.json", "--format", "json"]


def test_the_book_is_long_enough_and_differs_by_seed() -> None:
    assert len(book(1, 100_000).split()) == 400_000 and book(1, 9) == book(1, 9) != book(2, 9)
