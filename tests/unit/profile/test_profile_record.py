"""Records behave as the frozen dataclasses that a type checker takes them for."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.profile import patterns
from envgen.profile.model import Cache, Install, Profile
from envgen.profile.values import ByteSize, ContainerPath, CudaArch, ImageRef


def test_construction() -> None:
    assert CudaArch(12, 1) == CudaArch(major=12, minor=1, suffix="")
    assert Cache(ContainerPath("/c")).host is None
    for arguments, keywords in (((), {}), ((1, 2, "a", 4), {}), ((1,), {"major": 1}), ((1, 2), {"sufix": "a"})):
        with pytest.raises(TypeError):
            CudaArch(*arguments, **keywords)


def test_frozen() -> None:
    arch = CudaArch(12, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        arch.major = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del arch.major
    with pytest.raises(dataclasses.FrozenInstanceError):
        arch.other = 1  # type: ignore[attr-defined]


def test_equality_order_hash_repr() -> None:
    assert CudaArch(12, 1, "a") != CudaArch(12, 1)
    assert CudaArch(12, 1) != (12, 1, "")
    assert CudaArch(9, 0) < CudaArch(12, 0) <= CudaArch(12, 0)
    assert max(ByteSize(1), ByteSize(2)) == ByteSize(2) >= ByteSize(1)
    assert ByteSize(2) > ByteSize(1)
    assert len({CudaArch(12, 1), CudaArch(12, 1), CudaArch(12, 0)}) == 2
    assert repr(CudaArch(12, 1, "a")) == "CudaArch(major=12, minor=1, suffix='a')"
    with pytest.raises(TypeError):
        _ = CudaArch(12, 1) < 3  # type: ignore[operator]


def test_the_standard_librarys_helpers() -> None:
    assert dataclasses.is_dataclass(Profile)
    assert [field.name for field in dataclasses.fields(Cache)] == ["path", "host", "namespace"]
    assert dataclasses.replace(Install(), dependencies=True) == Install(dependencies=True)
    assert dataclasses.asdict(CudaArch(12, 1)) == {"major": 12, "minor": 1, "suffix": ""}
    assert copy.deepcopy(CudaArch(12, 1)) == pickle.loads(pickle.dumps(CudaArch(12, 1))) == CudaArch(12, 1)
    match CudaArch(12, 1, "a"):
        case CudaArch(major, minor, suffix):
            assert (major, minor, suffix) == (12, 1, "a")


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
    import re

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
