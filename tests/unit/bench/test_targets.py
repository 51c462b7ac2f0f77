"""Targets: what a measurement is compared with."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.bench.targets import at_least, gaps
from envgen.errors import UsageError
from envgen.profile.model import Target

TARGETS = {
    "llama.cpp": Target({"tg32": "57.85", "first_token": "200"}, "a/b", "notes"),
    "SGLang": Target({"decode": "52.37"}, "a/b", "notes", concurrency=8),
    "deep": Target({"pp2048": "1000"}, "a/b", "x", depth=4096),
}


def cell(output: int = 32, context: int = 0, concurrency: int = 1, **medians: float) -> dict[str, Any]:
    head = {"test": f"tg{output}", "prompt_tokens": 2048, "output_tokens": output, "context_tokens": context}
    return {**head, "concurrency": concurrency, **{name: {"median": value} for name, value in medians.items()}}


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (cell(decode_tps=57.85 * 0.9, ttft_ms=250), ["57.85 llama.cpp (tg32): 52.07, -10 %",
         "200 llama.cpp (first_token): 250.00, -25 %"]),
        (cell(output=128, decode_tps=60), []),
        (cell(concurrency=8, decode_tps=104.74), ["52.37 SGLang (decode): 104.74, +100 %"]),
        (cell(context=4096, prefill_tps=990), ["1000 deep (pp2048): 990.00, -1 %"]),
        (cell(prefill_tps=990), []),
    ],
)  # fmt: skip
def test_a_figure_is_compared_in_its_own_cell_alone(measured: dict[str, Any], expected: list[str]) -> None:
    assert [str(gap) for gap in gaps(TARGETS, [measured])] == expected


def test_at_least_is_a_line_and_what_was_not_measured_is_not_reached() -> None:
    rows = gaps(TARGETS, [cell(decode_tps=57.85 * 0.85, ttft_ms=150)])
    assert at_least("llama.cpp -20%", TARGETS).missed(rows) == []
    assert [gap.figure for gap in at_least("llama.cpp -10 %", TARGETS).missed(rows)] == ["tg32"]
    assert [gap.figure for gap in at_least("llama.cpp", TARGETS).missed(rows)] == ["tg32"]
    assert len(at_least("llama.cpp +50%", TARGETS).missed(rows)) == 2
    with pytest.raises(UsageError, match="nothing that SGLang has was measured"):
        at_least("SGLang", TARGETS).missed(rows)
    with pytest.raises(UsageError, match="no target 'vulkan'"):
        at_least("vulkan -5%", TARGETS)
