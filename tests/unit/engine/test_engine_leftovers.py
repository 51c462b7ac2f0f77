"""Which temporary containers are left over, and which somebody may still wait for."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.engine.host import ENDED, RUNS, THROWAWAY, judge

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
