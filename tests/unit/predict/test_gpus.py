"""GPUs by name and by capability."""

from __future__ import annotations

import pytest

from envgen.errors import UsageError
from envgen.predict import gpus


@pytest.mark.parametrize("word", ["gb10", "GB10", "NVIDIA GB10", "12.1", "121", "sm_121", "sm121a", "12.1a"])
def test_a_gb10_has_many_spellings(word: str) -> None:
    found = gpus.find(word)
    assert (found.name, found.major, found.minor, found.unified) == ("NVIDIA GB10", 12, 1, True)


def test_a_capability_that_no_known_gpu_has_is_taken_as_it_is() -> None:
    found = gpus.find("8.6")
    assert (found.name, found.unified) == ("a GPU of compute capability 8.6", False)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"(?s)not a known GPU.*h100, .*, gb10, or a compute"):
        gpus.find("gb11")
