"""Where gates meet: whose entry is alive, whatever clocks do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_program import gate

YEAR = 365 * 86400


@pytest.fixture(params=[-YEAR, 0, YEAR], ids=["a year ago", "now", "in a year"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A folder with a gate that lives, and what two killed ones left. The files have these times."""
    # The wall clock is not even there.
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=time.monotonic))
    alive = gate.Meeting(str(tmp_path), gate.Entry("alive", "running", current=5))
    folder = tmp_path / "gate"
    os.mkfifo(folder / "dead.pipe")
    for name in ("dead", "half"):  # half: killed between two deletions
        (folder / name).write_bytes(alive.mine.text())
    for path in folder.iterdir():
        os.utime(path, (time.time() + request.param,) * 2)
    yield alive
    alive.leave()


def test_a_jump_of_the_clock_neither_ends_nor_keeps_an_entry(meeting: Any, tmp_path: Path) -> None:
    keeper = gate.Meeting(str(tmp_path), gate.Entry("keeper1"))
    try:
        assert keeper.keep()
        assert [(entry.name, entry.state) for entry in keeper.entries()] == [
            ("keeper1", "waiting"),
            ("alive", "running"),
        ]
        left = sorted(path.name for path in (tmp_path / "gate").iterdir())
        assert left == ["alive", "alive.pipe", "keeper.lock", "keeper1", "keeper1.pipe"]
    finally:
        keeper.leave()


def test_one_keeps_the_gate_and_the_next_takes_over(meeting: Any, tmp_path: Path) -> None:
    other = gate.Meeting(str(tmp_path), gate.Entry("other"))
    try:
        assert meeting.keep() and not other.keep()
        meeting.leave()
        assert other.keep()
    finally:
        other.leave()
