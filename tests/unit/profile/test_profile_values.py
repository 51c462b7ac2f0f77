"""Value types: what they accept they print again, what they refuse they refuse with a sentence."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.profile import values
from envgen.profile.values import ByteSize, CudaArchList, Duration, Pin, plain_text

# The controls that reorder text, and the marks that do so unseen.
BIDI = frozenset(("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))
MARKS = "\u061c\u200e\u200f"

TYPES: list[Any] = [kind for kind in vars(values).values() if hasattr(kind, "EXAMPLE")]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_the_example_is_good(kind: Any) -> None:
    assert str(kind.parse(kind.EXAMPLE)) == kind.EXAMPLE or kind is Duration
    assert re.search(kind.PATTERN, kind.EXAMPLE)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@given(text=st.one_of(st.text(max_size=20), st.text("0123456789abf.:/-_ =@mgkKiB", max_size=20)))
def test_what_is_accepted_is_stable_and_in_the_schema(kind: Any, text: str) -> None:
    try:
        value = kind.parse(text)
    except ValueError as error:
        assert str(error)
        return
    assert kind.parse(str(value)) == value or kind is ByteSize  # sizes print with one decimal
    if text.isprintable():
        assert re.search(kind.PATTERN, text)


@given(st.text())
def test_plain_text_is_kept_or_refused(text: str) -> None:
    refused = any(
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in BIDI or c in MARKS
        for c in text
    )
    try:
        assert plain_text(text) == text
    except ValueError:
        assert refused
    else:
        assert not refused


def test_the_spellings_of_an_architecture() -> None:
    archs = CudaArchList.parse("12.1a 12.0f")
    assert str(archs) == "12.1a 12.0f"
    assert archs.torch == "12.1a;12.0a"
    assert archs.folder == "120f_121a"
    assert archs.archs[0].sm == "sm_121a"


def test_a_wheel_by_its_address_names_the_page() -> None:
    with pytest.raises(ValueError, match=r"docs/updates\.md, A wheel by address"):
        Pin.parse("vllm @ https://wheels.example.com/vllm-0.33.0-py3-none-any.whl")
