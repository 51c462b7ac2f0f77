"""The patterns of values, and what they mean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envgen.profile import shape
from envgen.profile.values import ImageRef

PATTERNS = [
    value
    for name, value in vars(shape).items()
    if name.isupper()
    and not name.startswith("_")
    and isinstance(value, str)
    and (isinstance(value, shape.Pattern) or "[" in value)
]


def test_every_pattern_has_a_meaning() -> None:
    assert all(isinstance(one, shape.Pattern) for one in PATTERNS)
    assert len(set(PATTERNS)) == len(PATTERNS)


@given(st.text(max_size=30))
def test_images_come_back_or_are_refused(text: str) -> None:
    try:
        image = ImageRef.parse(text)
    except ValueError as error:
        assert str(error)
    else:
        assert str(image) == text
