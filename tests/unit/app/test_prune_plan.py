"""What prune finds in a project, and whose volumes it leaves alone. tests/engine/test_prune.py has the real engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from envgen.app import prune


def put(path: Path, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    os.utime(path, (time.time() - age,) * 2)
    return path


def left(root: Path) -> set[str]:
    """What is removed, and is really gone."""
    items = [*prune._old(root, "log", "logs", 3), *prune._old(root, "crash", "crash", 2)]
    assert not any(prune.remove(items))
    return {item.name for item in items}


def test_the_newest_logs_and_crash_bundles_stay(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / f".envgen/logs/build-{'zab'[number % 3]}-{number}.log", age=100 - number)
        put(tmp_path / f".envgen/crash/{number}-serve.tar.gz", age=100 - number)
    assert len(left(tmp_path)) == 3 + 4
    assert {path.name[-5] for path in (tmp_path / ".envgen/logs").iterdir()} == {"3", "4", "5"}
    assert {path.name[0] for path in (tmp_path / ".envgen/crash").iterdir()} == {"4", "5"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for number in range(9):
        put(tmp_path / f"victim/{number}.log")
    root = tmp_path / "p"
    root.mkdir()
    (root / ".envgen").mkdir()
    (root / ".envgen/logs").symlink_to(victim)
    assert left(root) == set()
    assert len(list(victim.iterdir())) == 9


def test_what_can_not_be_removed_is_listed() -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    items = [prune.Item("log", "a", 1, "old", refuse), prune.Item("log", "b", 1, "old", lambda: "")]
    assert prune.remove(items) == ["Operation not permitted", ""]
