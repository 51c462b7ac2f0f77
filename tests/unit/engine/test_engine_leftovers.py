"""Which temporary containers are left over, and which somebody still waits for."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.host import CREATOR, ENDED_AGE, THROWAWAY, UNKNOWN_AGE, judge, lives, this_process

NOW = 1_800_000_000.0


def row(creator: object = "", state: str = "running", age: float = 1.0) -> dict[str, Any]:
    labels = {THROWAWAY: "1", **({CREATOR: str(creator)} if creator else {})}
    return {"Id": "a" * 64, "Names": ["/bold_name"], "Image": "base:1", "State": state, "Created": int(NOW - age),
            "Labels": labels}  # fmt: skip


def changed(creator: str, *, host: str = "", later: int = 0) -> str:
    own, pid, start = creator.split()
    return f"{host or own} {pid} {int(start) + later}"


def test_a_process_that_lives_is_gone_or_out_of_sight() -> None:
    mine = this_process()
    assert lives(mine) is True and f" {os.getpid()} " in mine
    assert lives(changed(mine, later=1)) is False, "the number went to another process"
    assert lives(changed(mine, host="another")) is None


@given(st.text())
def test_what_is_not_a_creator(text: str) -> None:
    assert lives(text) is None


@pytest.mark.parametrize("state", ["running", "created", "exited"])
def test_the_maker_decides_where_it_can_be_seen(state: str) -> None:
    mine = this_process()
    assert judge(row(mine, state, age=10 * UNKNOWN_AGE), NOW) is None
    found = judge(row(changed(mine, later=1), state), NOW)
    assert found is not None and found.name == "bold_name" and f"process {os.getpid()} of" in found.reason


@pytest.mark.parametrize("creator", ["", "another 1 1"])
def test_else_the_age_decides(creator: object) -> None:
    assert judge(row(creator, "running", UNKNOWN_AGE - 1), NOW) is None
    assert judge(row(creator, "running", UNKNOWN_AGE + 1), NOW) is not None
    assert judge(row(creator, "exited", ENDED_AGE - 1), NOW) is None
    assert judge(row(creator, "exited", ENDED_AGE + 1), NOW) is not None


def test_a_container_of_others_is_never_one() -> None:
    other = row("", "exited", 10 * UNKNOWN_AGE)
    assert judge(other | {"Labels": None}, NOW) is None
    assert judge(other | {"Labels": {"com.docker.compose.project": "x"}}, NOW) is None
