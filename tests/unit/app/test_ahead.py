"""What is compiled for a candidate while the old server serves on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app.upgrade import ahead
from envgen.errors import EngineError


def machine(volume: str, *caches: str) -> Any:
    build = SimpleNamespace(max_jobs=SimpleNamespace(count=3))
    profile = SimpleNamespace(caches=dict.fromkeys(caches), build=build)
    return SimpleNamespace(profile=profile, volume=volume, named=lambda text: f"m: {text}")


@pytest.mark.parametrize(
    ("old", "new", "modules", "compiled"),
    [
        (("v1", "flashinfer"), ("v2", "flashinfer"), ("page", "sampling", "page"), ["page", "sampling"]),
        (("v1", "flashinfer"), ("v1", "flashinfer"), ("page",), None),  # the same FlashInfer
        (("v1", "flashinfer"), ("v2", "flashinfer"), (), None),
        (("v1",), ("v2", "flashinfer"), ("page",), None),
        (("v1", "flashinfer"), ("v2",), ("page",), None),
    ],
)
def test_what_the_old_one_has(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: tuple[str, ...],
    new: tuple[str, ...],
    modules: tuple[str, ...],
    compiled: list[str] | None,
) -> None:
    made, asked = [machine(*old), machine(*new)], list[Any]()
    listed = SimpleNamespace(modules=[SimpleNamespace(name=name) for name in modules])
    built = [SimpleNamespace(name="page", outcome="done"), SimpleNamespace(name="sampling", outcome="unknown")]

    def warm(cache: Any, names: Any, jobs: int, _show: Any) -> Any:
        asked.append((cache.deployment.volume, names, jobs))
        if "fails" in modules:
            raise EngineError("no room")
        return built

    monkeypatch.setattr(ahead, "all_machines", lambda one: [one])
    monkeypatch.setattr(ahead, "cache_mount", lambda one: SimpleNamespace(source=one.volume))
    monkeypatch.setattr(ahead, "JitCache", lambda one: SimpleNamespace(deployment=one, inventory=lambda: listed))
    monkeypatch.setattr(ahead, "compile_for", warm)
    sessions: list[Any] = [SimpleNamespace(deployment=lambda one=one: one) for one in made]
    ahead.compile_ahead(sessions[0], sessions[1])
    said = capsys.readouterr().err
    if compiled is None:
        assert asked == [] and said == ""
        return
    assert asked == [("v2", compiled, 3)]
    assert "while the server serves on: page, sampling" in said
    assert "sampling: left to the start (unknown)" in said and "page: left" not in said
    modules = (*modules, "fails")
    ahead.compile_ahead(sessions[0], sessions[1])
    assert "m: not compiled beforehand: no room" in capsys.readouterr().err
