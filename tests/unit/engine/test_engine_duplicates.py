"""Which records of the build cache repeat an older one."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine import duplicates
from envgen.engine.api import Answer
from envgen.engine.duplicates import Kept, records_of, repeated

STEP = "mount / from exec /bin/sh -c sh /run/envgen/apt-install tree"


def kept(name: str, *parents: str, text: str = STEP, size: int = 1, made: int = 0) -> Kept:
    return Kept(name, parents, text, size, ("2026-11-21T00:00:00", f"{made:09}"))


def ids(records: list[Kept]) -> list[str]:
    return [record.id for record in records]


def test_a_step_of_the_image_counts_whatever_its_size() -> None:
    text = STEP + " && python3 /run/envgen/normalise 3"
    old, new = kept("a", "base", text=text, made=1), kept("b", "base", text=text, size=2, made=2)
    assert ids(repeated([old, new])) == ["b"]


def test_the_newer_of_two_equal_chains_goes() -> None:
    old = [kept("a", "base", made=1), kept("b", "a", text="WORKDIR /", made=2)]
    new = [kept("c", "base", made=3), kept("d", "c", text="WORKDIR /", made=4)]
    assert ids(repeated([*new, *old])) == ["c", "d"]


@pytest.mark.parametrize(
    "other",
    [
        kept("c", "elsewhere", made=3),
        kept("c", "base", text=STEP + "2", made=3),
        kept("c", "base", size=2, made=3),  # the same words, and something else came out: a source that changed
    ],
)
def test_what_differs_stays(other: Kept) -> None:
    assert repeated([kept("a", "base", made=1), other]) == []


def test_steps_of_others_stay() -> None:
    text = "mount / from exec /bin/sh -c make"
    assert repeated([kept("a", "base", text=text, made=1), kept("c", "base", text=text, made=2)]) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=12))
def test_one_of_each_stays_and_nothing_loses_its_ground(rows: list[tuple[int, int, bool]]) -> None:
    records = []
    for number, (parent, size, ours) in enumerate(rows):
        below = f"r{number - 1 - parent}" if number > parent else "base"
        records.append(kept(f"r{number}", below, text=STEP if ours else "make", size=size, made=number))
    gone = ids(repeated(records))
    assert len(gone) == len(set(gone))
    left = [record for record in records if record.id not in gone]
    assert repeated(left) == [] or any(record.parents[0] in gone for record in left)
    assert gone == [record.id for record in records if record.id in gone]  # oldest first: undone from the end
    assert {(r.text, r.size) for r in left} == {(r.text, r.size) for r in records}


def row(**more: Any) -> dict[str, Any]:
    return {"ID": "a", " Parents": ["p"], "Type": "regular", "Description": STEP, "Size": 5,
            "CreatedAt": "2026-11-21T11:49:48.37043525Z", **more}  # fmt: skip


def test_the_engines_answer() -> None:
    assert records_of({"BuildCache": [row()]}) == [Kept("a", ("p",), STEP, 5, ("2026-11-21T11:49:48", "370435250"))]
    odd = [row(Type="source.local"), row(Size=None), {"ID": "x"}, "text", row(CreatedAt="2026-11-21T11:49:48Z")]
    assert [record.made[1] for record in records_of({"BuildCache": odd})] == ["000000000"]
    assert records_of({"BuildCache": None}) == records_of(None) == records_of([]) == []


def test_they_are_removed_from_the_end_and_trouble_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    rows = [row(ID="a"), row(ID="b", CreatedAt="2026-11-21T12:00:00Z")]
    rows += [row(ID=name, CreatedAt=f"2026-11-21T12:00:0{second}Z", Description=STEP + "2", **{" Parents": [below]})
             for name, below, second in (("c", "a", 1), ("d", "b", 2))]  # fmt: skip

    class Api:
        def request(self, method: str, path: str, query: Any = None, body: Any = None) -> Answer:
            asked.append((path, (query or {}).get("filters", "")))
            if path == "/system/df":
                return Answer(200, json.dumps({"BuildCache": rows}).encode())
            if len(asked) == 3:
                return Answer(500, b'{"message": "busy"}')
            return Answer(200, b'{"CachesDeleted": ["d"]}')

    monkeypatch.setattr(duplicates, "open_api", lambda: (Api(), None))
    noon = datetime(2026, 11, 21, 12, tzinfo=timezone.utc).timestamp()
    assert duplicates.forget(noon) == 1
    assert [json.loads(filters)["id"] for _, filters in asked[1:]] == [{"d": True}, {"b": True}]
    assert duplicates.forget(noon + 1) == 1  # what an earlier build left is not this one's business
