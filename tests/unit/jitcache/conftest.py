"""In the unit tier the agent asks no other Python: what a real one answers is tested in the engine tier."""

from __future__ import annotations

import pytest

from envgen.inside.jit import libraries


@pytest.fixture(autouse=True)
def no_other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "run_python", lambda python, text: b"")
