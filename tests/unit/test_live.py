"""The line that moves while a command waits: drawn on a terminal alone, taken away before anything else is printed."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import time
from collections.abc import Iterator
from typing import TextIO, cast

import pytest

from envgen import live
from envgen.live import doing, moving, now_doing, paused
from envgen.text import SafeStream, progress


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """Both ends of a terminal."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live, "STILL", 0.1)
    monkeypatch.setattr(live, "TICK", 0.005)
    with os.fdopen(theirs, "w") as stream:
        yield ours, cast(TextIO, SafeStream(stream))
    os.close(ours)


def until(terminal: int, words: str) -> str:
    """What was written up to ``words``."""
    seen, deadline = "", time.monotonic() + 20
    while words not in seen:
        assert time.monotonic() < deadline, seen[-200:]
        try:
            seen += os.read(terminal, 65536).decode()
        except BlockingIOError:
            time.sleep(0.005)
    return seen


def test_it_says_what_is_waited_for_and_gives_way(ends: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, stream = ends
    monkeypatch.setattr(sys, "stderr", stream)  # here: between a fixture and its test, pytest sets its own
    with moving("starting"):
        until(terminal, "… starting, 0 s")
        with doing("serve", "serve: starting"):
            until(terminal, "… serve: starting, 0 s")
            now_doing("serve", "serve: loading\x1b[31m weights")
            with doing("other", "other: starting"):
                until(terminal, "… serve: loading\\x1b[31m weights, 0 s | other: starting, 0 s")
            progress("a line")
            assert "\r\x1b[Ka line\r\n" in until(terminal, "a line\r\n")
            until(terminal, "… serve")
            with paused():
                assert until(terminal, "\r\x1b[K")
                time.sleep(0.3)
                with contextlib.suppress(BlockingIOError):
                    assert "…" not in os.read(terminal, 65536).decode().rpartition("\x1b[K")[2]
                with pytest.raises(BlockingIOError):
                    os.read(terminal, 1)
        until(terminal, "… starting, 0 s")
    progress("the end")
    assert "\r\x1b[Kthe end" in until(terminal, "the end")


def test_a_log_has_no_such_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STILL", 0.0)
    monkeypatch.setattr(live, "TICK", 0.001)
    with moving("starting"), doing("serve", "serve"):
        time.sleep(0.02)
        progress("a line")
    assert capsys.readouterr().err == "a line\n"
