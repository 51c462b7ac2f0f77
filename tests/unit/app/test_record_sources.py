"""After a start that ended well: what its modules were compiled from is recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import provision
from envgen.errors import RefusedError
from envgen.profile.model import GpuMode


class Cache:
    """A cache with modules of each state."""

    recorded: list[tuple[str, ...]] = []  # noqa: RUF012
    refuses = False

    def __init__(self, _deployment: Any) -> None: ...

    def inventory(self) -> Any:
        rows = (
            ("sampling", "fresh", True),
            ("page", "fresh", False),
            ("norm", "stale", True),
            ("rope", "partial", False),
        )
        return SimpleNamespace(modules=[SimpleNamespace(name=n, state=s, guess=g) for n, s, g in rows])

    def baseline(self, query: Any) -> None:
        Cache.recorded.append(query.patterns)
        if Cache.refuses:
            raise RefusedError("a file has changed since")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_fresh_module_without_proof_gets_its_baseline(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> None:
    monkeypatch.setattr(provision, "JitCache", Cache)
    Cache.recorded, Cache.refuses = [], refuses
    deployment: Any = SimpleNamespace(gpu=GpuMode.ALL, profile=SimpleNamespace(caches={"flashinfer": None}))
    provision.record_sources(deployment)
    assert Cache.recorded == [("sampling",)]  # not the stale one, not what is proven, not what is half built
