"""The head start: which command lines have one, what it remembers, and that a bad memory does nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen import headstart
from envgen.__main__ import main
from envgen.aside import Aside
from envgen.errors import EngineError
from envgen.headstart import HeadStart
from envgen.remembered import Record

ID = "0123456789abcdef" * 4
WORDS = ["python3", "-I", "-c", "read"]


class Prepared:
    """An engine of which only one thing is wanted."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], str]] = []

    def prepare(self, container_id: str, argv: list[str], *, user: str = "") -> None:
        self.asked.append((container_id, argv, user))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Prepared]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    found = Prepared()
    monkeypatch.setattr("envgen.engine.docker.connect", lambda: found)
    yield found
    headstart.end()


def started(*words: str) -> HeadStart | None:
    headstart.begin(words)
    found = headstart.current()
    if found is not None:
        found.connect()  # waits for the thread
    return found


def test_the_second_run_asks_what_the_first_one_asked(engine: Prepared) -> None:
    first = started("cache", "clear", "page")
    assert first is not None and engine.asked == []
    first.keep(ID, WORDS, "0:0")
    assert started("cache", "list") is not None
    assert engine.asked == [(ID, WORDS, "0:0")]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["lock"],
        ["cache"],
        ["cache", "warm"],
        ["cache", "--help"],
        ["cache", "clear", "-h"],
        ["cache", "clear", "page", "--help"],
        ["-p", "cache", "clear"],
    ],
)
def test_other_command_lines_have_none(words: list[str], engine: Prepared) -> None:
    started("cache", "list").keep(ID, WORDS, "")  # type: ignore[union-attr]
    assert started(*words) is None and engine.asked == []


def test_it_ends_with_its_command(engine: Prepared) -> None:
    started("cache", "list").keep(ID, WORDS, "")  # type: ignore[union-attr]
    assert main(["cache", "list", "--no-such-option"]) == 2
    assert engine.asked == [(ID, WORDS, "")] and headstart.current() is None


def test_another_folder_file_or_profile_is_another_guess(
    engine: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started("cache", "list", "-p", "dev").keep(ID, WORDS, "")  # type: ignore[union-attr]
    for other in (["-p", "prod"], ["-pprod"], ["--profile=prod"], ["-f", "x.yaml", "-p", "dev"], []):
        started("cache", "list", *other)
    monkeypatch.setenv("ENVGEN_FILE", "x.yaml")
    started("cache", "list", "-p", "dev")
    monkeypatch.delenv("ENVGEN_FILE")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    started("cache", "list", "-p", "dev")
    assert engine.asked == []
    monkeypatch.chdir(tmp_path)
    started("cache", "list", "-p", "dev")
    assert len(engine.asked) == 1


def test_a_deleted_working_folder_is_told_by_the_verb(engine: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert started("cache", "list") is None


def test_a_user_without_a_home_has_none(engine: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", nobody)
    assert started("cache", "list") is None


def test_an_engine_that_cannot_be_reached_is_an_error_when_it_is_asked_for(
    engine: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    started("cache", "list").keep(ID, WORDS, "")  # type: ignore[union-attr]

    def refuse() -> None:
        raise EngineError("the Docker Engine is stopped")

    monkeypatch.setattr("envgen.engine.docker.connect", refuse)
    headstart.begin(["cache", "list"])
    with pytest.raises(EngineError, match="stopped"):
        headstart.current().connect()  # type: ignore[union-attr]


junk = st.one_of(st.none(), st.integers(), st.text(max_size=70), st.lists(st.text(max_size=5), max_size=3))


@given(container=junk | st.just(ID + "/../x") | st.just(ID.upper()), argv=junk, user=junk)
def test_a_memory_of_another_shape_asks_nothing(container: Any, argv: Any, user: Any) -> None:
    record = Record("headstarts", "junk")
    record.save({"container": container, "argv": argv, "user": user})
    head = HeadStart(record)
    head.start()
    assert head._connecting is None


def test_a_memory_that_others_may_write_to_is_none(engine: Prepared, tmp_path: Path) -> None:
    started("cache", "list").keep(ID, WORDS, "")  # type: ignore[union-attr]
    (file,) = (tmp_path / "cache").rglob("*.json")
    assert json.loads(file.read_bytes().partition(b"\n")[2])["container"] == ID
    file.chmod(0o666)
    started("cache", "list")
    assert engine.asked == []


def test_an_aside_gives_the_answer_or_the_error() -> None:
    assert Aside(lambda: 7).result() == 7

    def fail() -> int:
        raise KeyboardInterrupt

    failing = Aside(fail)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            failing.result()
