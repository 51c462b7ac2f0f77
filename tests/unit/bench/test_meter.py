"""What a load did beside its tokens: drafts from vLLM's counters, power, memory and clocks from nvidia-smi's lines."""

from __future__ import annotations

import pytest

from envgen.bench import meter

BEFORE = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09"""


def test_drafts_are_counted_between_two_readings() -> None:
    """A server that counts none, or drafted none meanwhile, has no rate."""
    before = BEFORE.splitlines()
    after = [
        line.replace(" 100.0", " 300.0") if "drafts_total" in line
        else line.replace(" 300.0", " 900.0").replace(" 90.0", " 4.5e+02")
        for line in before
    ]  # fmt: skip
    assert meter.of_drafts(before, after) == {"accepted_percent": 60.0, "step_tokens": 2.8}
    no_numbers = [
        line.rpartition(" ")[0] + value for line, value in zip(after, (" NaN", " 1e400", " 5abc"), strict=False)
    ]
    for other in ([line.replace(" 4.5e+02", " 30.0") for line in after], no_numbers):
        assert meter.of_drafts(before, other) == {}
    assert meter.of_drafts([], after) == {}
    assert meter.of_drafts(before, before) == meter.of_drafts([], []) == meter.of_drafts(before, []) == {}


@pytest.mark.parametrize(
    ("lines", "figures"),
    [
        (["0, 200.00, 81000, 0x0000000000000000", "0, 220.00, 81500, 0x0"], {"watts": 210.0, "memory_mib": 81500.0}),
        # An idle GPU before and after the load counts for its memory alone; two GPUs draw together.
        (
            ["0, 200.0, 100, 0x0", "1, 100.0, 50, 0x4", "0, 9.0, 300, 0x1", "1, 7.0, 40, 0x1"],
            {"slowed: power cap": 50.0, "watts": 300.0, "memory_mib": 350.0},
        ),
        # A GB10 has no memory of its own, and its clocks fell for two reasons.
        (
            ["0, 38.5, [N/A], 0x0000000000000028"],
            {"slowed: hardware slowdown": 100.0, "slowed: heat": 100.0, "watts": 38.5},
        ),
        (["0, [N/A], [N/A], [N/A]", "NVIDIA-SMI has failed", "", "0, , ,"], {}),
    ],
)
def test_what_the_gpus_tell(lines: list[str], figures: dict[str, float]) -> None:
    assert meter.of_gpus(lines) == figures


def test_figures_as_a_person_reads_them() -> None:
    figures = {"accepted_percent": 60.0, "step_tokens": 2.8, "watts": 200.0, "memory_mib": 1536.0, "slowed: heat": 12.4}
    assert list(meter.lines_of(figures, 58.0)) == [
        "drafts: 60.0 % of their tokens accepted, 2.80 tokens a step",
        "power: 200 W, 0.29 tokens/s a watt",
        "GPU memory: 1.5 GiB at its highest",
        "clocks were lowered in 12 % of the seconds: heat",
    ]
    assert list(meter.lines_of({"watts": 200.0}, None)) == ["power: 200 W"] and not list(meter.lines_of({}, 1.0))
