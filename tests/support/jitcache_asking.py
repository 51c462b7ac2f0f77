"""Asking the agent to clear, in this process."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from jitcache_layouts import lost, snapshot

from envgen.inside.jit import main


def answer(request: Any) -> dict[str, Any]:
    """The agent's answer, as its JSON arrives on the host."""
    document: dict[str, Any] = json.loads(json.dumps(main.answer(request)))
    return document


def ask(root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    """Run the agent's clear on ``root``."""
    return answer({"operation": "clear", "root": str(root), "patterns": list(patterns), **request})


def good(root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    document = ask(root, *patterns, **request)
    assert document["ok"], document
    result: dict[str, Any] = document["result"]
    return result


def bad(kind: str, root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    """The clear must fail as ``kind`` and leave every byte as it was."""
    before = snapshot(root)
    document = ask(root, *patterns, **request)
    assert not document["ok"]
    assert document["kind"] == kind, document
    assert not lost(before, root)
    return document


def hold(path: Path, how: int = fcntl.LOCK_EX) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, how | fcntl.LOCK_NB)
    return fd
