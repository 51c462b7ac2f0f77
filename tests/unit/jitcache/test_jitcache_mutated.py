"""Whatever the agent's document says, for the Python that it came from is the container's: an error, never a defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jitcache_asking import answer
from jitcache_engine import PROJECT, ROOT, LocalEngine
from jitcache_layouts import put, release
from mutated import CHANGES, Changes, mutated

from envgen.__main__ import main
from envgen.engine.values import ExecResult

ASKED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "list": ({"operation": "list"}, ["list"]),
    "why": ({"operation": "why", "patterns": ["page"]}, ["why", "page"]),
    "clear": ({"operation": "clear", "patterns": ["page"], "dry_run": True}, ["clear", "page", "--dry-run"]),
    "nothing": ({"operation": "clear", "patterns": ["pag"]}, ["clear", "pag"]),
}


@given(name=st.sampled_from(sorted(ASKED)), changes=CHANGES, as_json=st.booleans())
def test_any_document_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: Changes, as_json: bool
) -> None:
    root = tmp_path / "cache"
    if not root.exists():
        release(root, "0.7.2.post1")
        caches = f"flashinfer: {{path: {ROOT}, namespace: false}}"
        put(tmp_path / "project/envgen.yaml", PROJECT.format(caches=caches))
    engine = LocalEngine(root)
    monkeypatch.setattr("envgen.deployment.host.connect", lambda *_: engine)
    monkeypatch.chdir(tmp_path / "project")
    request, words = ASKED[name]
    document = mutated(answer({**request, "root": str(root)}), changes)
    engine.answers["demo:dev"] = ExecResult(0, json.dumps(document).encode(), b"")
    assert main(["cache", *words, *(["--json"] if as_json else [])]) in (0, 1, 3, 6)
