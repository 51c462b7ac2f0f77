"""JSON to dataclasses: every kind of field, and the key that is named when it has another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.binding import ShapeError, bind


@dataclass(frozen=True)
class Inner:
    name: str
    size: int = 0


@dataclass(frozen=True)
class Outer:
    ratio: float
    inner: Inner
    many: tuple[Inner, ...] = ()
    words: tuple[str | None, ...] = ()
    names: frozenset[str] = frozenset()
    values: Mapping[str, int] = field(default_factory=dict)
    note: str | None = None
    right: bool = False


GOOD = {"ratio": 1, "inner": {"name": "a"}}


def test_what_is_there_and_what_is_not() -> None:
    assert bind(Outer, {**GOOD, "unknown": 7}) == Outer(1.0, Inner("a"))
    full = {**GOOD, "many": [{"name": "b", "size": 2}], "words": ["x", None], "names": ["n"], "values": {"k": 1},
            "note": "s", "right": True}  # fmt: skip
    assert bind(Outer, full) == Outer(
        1.0, Inner("a"), (Inner("b", 2),), ("x", None), frozenset({"n"}), {"k": 1}, "s", True
    )
    assert bind(Inner, {"name": "a\udcff"}).name == r"a\udcff"  # a file name may hold any byte


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ratio": "1"}, "ratio is not float"),
        ({"ratio": 1e300}, "ratio is not float"),
        ({"ratio": float("nan")}, "ratio is not float"),
        ({"inner": []}, "inner is not an object"),
        ({"inner": {}}, "inner.name is missing"),
        ({"inner": {"name": "a", "size": True}}, "inner.size is not int"),
        ({"inner": {"name": "a", "size": 1 << 63}}, "inner.size is not int"),
        ({"many": {}}, "many is not a list"),
        ({"many": [{"name": 1}]}, "many.name is not str"),
        ({"values": {"k": "1"}}, "values.k is not int"),
        ({"right": 1}, "right is not bool"),
    ],
)
def test_another_shape(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ShapeError) as caught:
        bind(Outer, {**GOOD, **change})
    assert str(caught.value) == sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["name", "inner", "many", "ratio", "x"]), inner),
)


@given(JSON)
def test_nothing_else_is_ever_raised(data: Any) -> None:
    try:
        bind(Outer, data)
    except ShapeError as error:
        assert str(error)
