"""Which temporary containers are left over, and which somebody still waits for."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from envgen.engine.host import CREATOR, ENDED_AGE, THROWAWAY, UNKNOWN_AGE, Creator, judge, lives, this_process

NOW = 1_800_000_000.0


def row(creator: object = "", state: str = "running", age: float = 1.0) -> dict[str, Any]:
    labels = {THROWAWAY: "1", **({CREATOR: str(creator)} if creator else {})}
    return {"Id": "a" * 64, "Names": ["/bold_name"], "Image": "base:1", "State": state, "Created": int(NOW - age),
            "Labels": labels}  # fmt: skip


def test_a_creator_is_written_and_read() -> None:
    mine = this_process()
    assert Creator.parse(str(mine)) == mine and mine.pid == os.getpid()
    assert lives(mine) is True


@pytest.mark.parametrize("text", ["", "1", "host=a boot=b", "host=a boot=b namespace=c pid=x start=1"])
def test_what_is_not_a_creator(text: str) -> None:
    assert Creator.parse(text) is None


def test_a_process_that_is_gone_or_another_or_out_of_sight() -> None:
    mine = this_process()
    assert lives(replace(mine, start=mine.start + 1)) is False, "the number went to another process"
    assert lives(replace(mine, boot="another")) is False, "the machine was started again"
    assert lives(replace(mine, host="another")) is None
    assert lives(replace(mine, namespace="pid:[1]")) is None


@pytest.mark.parametrize("state", ["running", "created", "exited"])
def test_the_maker_decides_where_it_can_be_seen(state: str) -> None:
    mine = this_process()
    assert judge(row(mine, state, age=10 * UNKNOWN_AGE), NOW) is None
    found = judge(row(replace(mine, start=mine.start + 1), state), NOW)
    assert found is not None and found.name == "bold_name" and f"process {mine.pid} on" in found.reason


@pytest.mark.parametrize("creator", ["", replace(this_process(), host="another")])
def test_else_the_age_decides(creator: object) -> None:
    assert judge(row(creator, "running", UNKNOWN_AGE - 1), NOW) is None
    assert judge(row(creator, "running", UNKNOWN_AGE + 1), NOW) is not None
    assert judge(row(creator, "exited", ENDED_AGE - 1), NOW) is None
    assert judge(row(creator, "exited", ENDED_AGE + 1), NOW) is not None


def test_a_container_of_others_is_never_one() -> None:
    other = row("", "exited", 10 * UNKNOWN_AGE)
    assert judge(other | {"Labels": None}, NOW) is None
    assert judge(other | {"Labels": {"com.docker.compose.project": "x"}}, NOW) is None
