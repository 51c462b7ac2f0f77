"""Questions in threads: trouble of others is a problem of the lock, a defect of envgen is not."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.errors import EngineError
from envgen.lock.resolve import _job


def fails(error: Exception) -> Any:
    def ask() -> Any:
        raise error

    return ask


def test_trouble_of_others() -> None:
    said: list[str] = []
    found, error = _job("base", fails(EngineError("no engine")), said.append).result()
    assert found is None and error is not None and "no engine" in str(error) and not said


def test_a_defect_of_envgen() -> None:
    with pytest.raises(TypeError, match="ours"):
        _job("base", fails(TypeError("ours")), print).result()
