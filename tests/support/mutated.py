"""Documents out of a container with parts exchanged at random, for tests that nothing falls over one."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

ODD: list[Any] = [
    None, True, -1, 0, 1 << 70, 10**400, 1.5, float("inf"), float("nan"), "", "x" * 3000, "\x1b]0;PWN\x07",
    "\u202e\ud800", "12.1", [], {}, [[]], [None], [{}], {"": None}, {"a": {"b": [1, "x", None]}}, ["x", 1, None, {}],
]  # fmt: skip
Changes = list[tuple[int, Any, str]]
CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.sampled_from(ODD), st.sampled_from(["put", "put", "put", "wrap", "remove"])),
    min_size=1,
    max_size=4,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document something can be exchanged."""
    found = [path] if path else []
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = list(enumerate(document))
    for key, value in inner[:40]:
        found += places(value, (*path, key))
    return found


def mutated(document: Any, changes: Changes) -> Any:
    """The document with these changes, each at one of its places."""
    document = copy.deepcopy(document)
    for number, value, how in changes:
        found = places(document)
        if not found:
            break
        *way, last = found[number % len(found)]
        target = document
        for key in way:
            target = target[key]
        if how == "remove":
            del target[last]
        else:
            target[last] = [target[last]] if how == "wrap" else copy.deepcopy(value)
    return document
