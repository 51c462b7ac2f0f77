"""Is there enough memory? From recorded /proc files."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.serve.memory import check, largest

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        "MemTotal: 125829120 kB\nMemFree: 20971520 kB\nMemAvailable: 104857600 kB\nCached: 90000000 kB\n"
    )
    for pid, name, size in (
        (7, "Xorg", 1 << 20),
        (4711, "python3 serve", 30 << 20),
        (8, "kthreadd", None),
        (9, "a", 5),
    ):
        (proc / str(pid)).mkdir()
        rss = f"VmRSS:\t{size} kB\n" if size else ""
        (proc / str(pid) / "status").write_text(f"Name:\t{name}\nState: S\n{rss}")
    (proc / "self").mkdir()
    (proc / "10").mkdir()  # ended between two looks
    return tmp_path


def test_too_little(machine: Path) -> None:
    (problem,), notes = check(101 * GIB, unified=True, root=machine)
    assert problem.message == "it needs 101.0 GiB of memory, and 100.0 GiB can be had" and notes == []
    assert "python3 serve (4711) 30.0 GiB, Xorg (7) 1.0 GiB" in problem.hint and "needs_memory" in problem.hint


def test_enough_but_in_the_page_cache(machine: Path) -> None:
    problems, (note,) = check(84 * GIB, unified=True, root=machine)
    assert problems == [] and "only 20.0 GiB are unused" in note and "drop_caches" in note
    assert check(84 * GIB, unified=False, root=machine) == ([], [])
    assert check(19 * GIB, unified=True, root=machine) == ([], [])


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert "is unknown" in check(1, unified=True, root=tmp_path)[1][0]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("nothing\n")
    assert "is unknown" in check(1, unified=True, root=tmp_path)[1][0]


def test_the_largest(machine: Path) -> None:
    assert [name for _, _, name in largest(machine)] == ["python3 serve", "Xorg", "a"]
