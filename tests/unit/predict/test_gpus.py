"""GPUs by name and by capability."""

from __future__ import annotations

import pytest

from envgen.errors import UsageError
from envgen.predict import gpus


@pytest.mark.parametrize("word", ["gb10", "GB10", "NVIDIA GB10", "12.1", "121", "sm_121", "sm121a", "12.1a"])
def test_a_gb10_has_many_spellings(word: str) -> None:
    found = gpus.find(word)
    assert (found.name, found.major, found.minor) == ("NVIDIA GB10", 12, 1)
    assert str(found) == "NVIDIA GB10 (12.1, 120 GiB)"


def test_a_capability_that_no_known_gpu_has_is_taken_as_it_is() -> None:
    assert str(gpus.find("11.0")) == "a GPU of compute capability 11.0 (11.0, 80 GiB)"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find("gb11")
    assert (
        "not a known GPU" in str(caught.value)
        and "a100, " in str(caught.value)
        and ", gb10, or a compute" in str(caught.value)
    )
