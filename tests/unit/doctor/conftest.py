"""The fixtures of this folder; what they are made of stands in doctor_facts.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_facts import make

__all__ = ["make"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Renders are remembered in the user's cache: not those of tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
