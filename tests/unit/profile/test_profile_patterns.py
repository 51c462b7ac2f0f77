"""The patterns of values, and what they mean."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from envgen.profile import patterns
from envgen.profile.values import ImageRef

PATTERNS = [
    value
    for name, value in vars(patterns).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str)
]
TEXTS = st.one_of(
    st.text(max_size=50),
    st.text("azAZ09_.-/:@=<> ", max_size=50),
    st.text("abcdef0123456789", min_size=63, max_size=65),
    st.sampled_from(
        ["https://", "https://a", "https://a b", "Dockerfile.dev", "on-failure:3", "a__b", "_", "a_", "é", "", "²"]
    ),
)


@given(st.sampled_from(PATTERNS), TEXTS)
def test_the_shortcut_accepts_what_the_pattern_accepts(pattern: str, text: str) -> None:
    assert patterns.matches(pattern, text) == (re.fullmatch(pattern, text) is not None)


def test_every_pattern_has_a_meaning() -> None:
    assert set(PATTERNS) - set(patterns.MEANING) == {patterns.PROJECT_NAME}
    assert len(set(PATTERNS)) == len(PATTERNS)


@given(st.text(max_size=30))
def test_images_come_back_or_are_refused(text: str) -> None:
    try:
        image = ImageRef.parse(text)
    except ValueError as error:
        assert str(error)
    else:
        assert str(image) == text
