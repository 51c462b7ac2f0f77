"""Is there enough memory? From recorded /proc files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_render_make import profile

from envgen.serve.memory import in_page_cache, plan, too_little

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        "MemTotal: 125829120 kB\nMemFree: 20971520 kB\nMemAvailable: 104857600 kB\nCached: 90000000 kB\n"
    )
    return tmp_path


def test_too_little(machine: Path) -> None:
    (problem,) = too_little(101 * GIB, root=machine)
    assert problem.message == "it needs 101.0 GiB of memory, and 100.0 GiB are available"
    assert "--sort=-rss" in problem.hint and "needs_memory" in problem.hint


def test_enough_but_in_the_page_cache(machine: Path) -> None:
    assert too_little(84 * GIB, root=machine) == []
    (note,) = in_page_cache(84 * GIB, unified=True, root=machine)
    assert "only 20.0 GiB are unused" in note and "drop_caches" in note
    assert in_page_cache(84 * GIB, unified=False, root=machine) == []
    assert in_page_cache(19 * GIB, unified=True, root=machine) == []


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert "is unknown" in in_page_cache(1, unified=True, root=tmp_path)[0]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("nothing\n")
    assert "is unknown" in in_page_cache(1, unified=True, root=tmp_path)[0]


@pytest.mark.parametrize(
    ("floor", "kept"), [("auto", "6.0 GiB"), ("auto:0.30", "6.0 GiB"), ("auto:0.10", "3.0 GiB"), ("9GiB", ""), ("", "")]
)
def test_up_says_what_the_guard_keeps_free(tmp_path: Path, floor: str, kept: str) -> None:
    """As the guard itself computes it (tests/process/test_memory_guard.py), for the 121.7 GiB of a GB10."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 127611904 kB\n")
    notes = plan(profile(), "serve", floor, root=tmp_path)
    assert notes == ([f"memory-guard ends serve when less than {kept} of the machine are available"] if kept else [])
