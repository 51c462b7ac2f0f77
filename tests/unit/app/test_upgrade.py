"""An upgrade: one value of the file changes, files are written together, and what is measured is judged."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from envgen import files
from envgen.app.upgrade import journal
from envgen.app.upgrade.trial import judged
from envgen.errors import Place, ProjectError, RefusedError
from envgen.profile.edit import with_value

TEXT = """\
a: {b: [x==1, 'y==1']}  # a comment
c: &c z==1
d: *c
e: |
  w
"""


@pytest.mark.parametrize(
    ("line", "column", "value", "expected"),
    [
        (1, 9, "x[b]==2", ('x==1, ', '"x[b]==2", ')),
        (1, 9, "x==2", ("x==1,", "x==2,")),
        (1, 15, "y[b]==2", ("'y==1'", "'y[b]==2'")),
        (1, 15, "it's", ("'y==1'", '"it\'s"')),
    ],
)  # fmt: skip
def test_one_value_changes(line: int, column: int, value: str, expected: tuple[str, str]) -> None:
    assert with_value(TEXT, Place("f", line, column), "key", value) == TEXT.replace(*expected)


@pytest.mark.parametrize("place", [Place("f", 2, 4), Place("f", 3, 4), Place("f", 4, 4), Place("f", 9, 1), None])
def test_what_is_no_plain_value_is_left_to_the_user(place: Place | None) -> None:
    with pytest.raises(ProjectError, match="can't be changed here"):
        with_value(TEXT, place, "key", "v")


NAMES = ("envgen.yaml", "envgen.lock", "compose/prod.yaml")


@pytest.mark.parametrize("at", range(5))
def test_a_break_leaves_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """However many files were written: after the next command they are all old, or all new."""
    (tmp_path / "compose").mkdir()
    for name in NAMES:
        (tmp_path / name).write_text("old")
    write, calls = files.write, iter(range(99))

    def broken(*words: Any, **more: Any) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt
        write(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", broken)
        if at < 4:
            with pytest.raises(KeyboardInterrupt):
                journal.write_together(tmp_path, "prod", dict.fromkeys(NAMES, "new"))
        else:
            journal.write_together(tmp_path, "prod", dict.fromkeys(NAMES, "new"))
    journal.finish(tmp_path / "envgen.yaml")
    assert {(tmp_path / name).read_text() for name in NAMES} == {"old" if at == 0 else "new"}
    assert not list(tmp_path.glob(".envgen/candidate/*/keep.json"))


@pytest.mark.parametrize("at", range(4))
def test_a_full_disk_leaves_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    (tmp_path / "compose").mkdir()
    for name in NAMES:
        (tmp_path / name).write_text("old")
    write, calls = files.write, iter(range(99))

    def full(*words: Any, **more: Any) -> None:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*words, **more)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(OSError, match="No space left"):
        journal.write_together(tmp_path, "prod", dict.fromkeys(NAMES, "new"))
    journal.finish(tmp_path / "envgen.yaml")
    assert {(tmp_path / name).read_text() for name in NAMES} == {"old"}


@pytest.mark.parametrize(
    "content", ["", "[]", '{"a": 1}', '{"../a": "x"}', '{".git/config": "x"}', '{"docker/../.git/config": "x"}']
)
def test_a_journal_of_somebody_else(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "project/.envgen/candidate/prod"
    folder.mkdir(parents=True)
    (folder / journal.JOURNAL).write_text(content)
    with pytest.raises(RefusedError):
        journal.finish(tmp_path / "project/envgen.yaml")
    assert not (tmp_path / "a").exists() and not (tmp_path / "project/.git").exists()


OLD = {"cause": "", "verdict": "same", "figures": {"decode t/s": 100.0, "first token ms": 10.0}}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"verdict": "close"}, ""),
        ({"verdict": "different"}, "its answers are different"),
        ({"verdict": "not compared"}, "its answers are not compared"),
        ({"cause": "x", "error": "whole"}, "whole"),
        ({"figures": {"decode t/s": 95.0}}, ""),
        ({"figures": {"decode t/s": 94.0}}, "decode t/s -6 %, and 5 % slower is too slow"),
        ({"figures": {"first token ms": 99.0}}, ""),
    ],
)
def test_what_is_kept(changed: dict[str, Any], why: str) -> None:
    assert judged(OLD, OLD | changed, 5.0) == why


def test_a_trial_is_known_until_it_is_over(tmp_path: Path) -> None:
    assert not journal.abandoned(tmp_path, "prod")
    trial = journal.Pending("envgen upgrade vllm", "of", {"serve": ""}, {"serve": {"verdict": "same"}})
    with journal.alone(tmp_path, "prod"):
        journal.save(tmp_path, "prod", trial, "text", "lock")
        assert journal.pending(tmp_path, "prod") == trial
        assert not journal.abandoned(tmp_path, "prod")
        with pytest.raises(RefusedError, match="another envgen"), journal.alone(tmp_path, "prod"):
            pass
    assert journal.abandoned(tmp_path, "prod")
    journal.forget(tmp_path, "prod")
    assert journal.pending(tmp_path, "prod") is None
