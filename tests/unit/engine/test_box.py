"""Facts about a machine, from recorded files, tables of nvidia-smi and the engine's list of containers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine import box
from envgen.engine.host import ENDED, RUNS, THROWAWAY, judge

GB10 = "NVIDIA GB10, 4.38, 208, 3003, 38, 0, 0x0000000000000001\n"  # idle; as public dumps show it
HOT = "NVIDIA H100 80GB HBM3, 655.10, 1410, 1980, 86, 100, 0x0000000000000024\n"


def test_gpus() -> None:
    idle, hot = box.parse_gpus(GB10 + HOT)
    assert (idle.name, idle.power, idle.clock, idle.limits) == ("NVIDIA GB10", 4.38, 208, ())
    assert hot.limits == ("heat", "power cap") and hot.temperature == 86
    (unknown,) = box.parse_gpus("NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], [N/A], 0x0\n")
    assert (unknown.power, unknown.clock, unknown.load) == (None, None, None)


@given(st.text(max_size=300))
def test_nothing_that_a_program_prints_breaks_it(text: str) -> None:
    box.parse_gpus(text)


# Temporary containers that are left over


NOW = 1_800_000_000.0


def row(state: str, age: float) -> dict[str, Any]:
    return {
        "Id": "a" * 64,
        "Names": ["/bold_name"],
        "State": state,
        "Created": int(NOW - age),
        "Labels": {THROWAWAY: "1"},
    }


@pytest.mark.parametrize(
    ("state", "limit"), [("running", RUNS), ("paused", RUNS), ("created", ENDED), ("exited", ENDED)]
)
def test_the_age_decides(state: str, limit: float) -> None:
    assert judge(row(state, limit - 1), NOW) is None
    found = judge(row(state, limit + 1), NOW)
    assert found is not None and found.name == "bold_name"


def test_a_container_of_others_is_never_one() -> None:
    assert judge(row("exited", 10 * RUNS) | {"Labels": None}, NOW) is None
    assert judge(row("exited", 10 * RUNS) | {"Labels": {"com.docker.compose.project": "x"}}, NOW) is None
