"""Docker's mixed stream, cut anywhere; a log of which only the end is kept; a program's lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.session import LONGEST_LINE, Demultiplexer, OutputCollector, OutputTooLong, Tail
from envgen.engine.values import ExecResult


def frame(channel: int, data: bytes) -> bytes:
    return bytes([channel, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50))), st.lists(st.integers(1, 20), min_size=1))
def test_cut_anywhere_it_is_the_same(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame(channel, part) for channel, part in frames)
    output = OutputCollector()
    demultiplexer = Demultiplexer(output.receive)
    at = step = 0
    while at < len(data):
        demultiplexer.feed(data[at : at + cuts[step % len(cuts)]])
        at += cuts[step % len(cuts)]
        step += 1
    expected = (b"".join(part for channel, part in frames if channel == wanted) for wanted in (1, 2))
    assert output.result(0) == ExecResult(0, *expected)


def test_the_engine_s_own_error_goes_to_stderr() -> None:
    output = OutputCollector()
    Demultiplexer(output.receive).feed(frame(3, b"broken"))
    assert output.result(1).stderr == b"broken"


def test_a_frame_that_announces_more_than_the_limit_is_not_waited_for() -> None:
    output = OutputCollector(limit=10)
    demultiplexer = Demultiplexer(output.receive)
    demultiplexer.feed(frame(1, b"12345"))
    with pytest.raises(OutputTooLong):
        demultiplexer.feed(frame(2, b"x" * 100)[:20])


@pytest.mark.parametrize("data", [b"plain text, no frames", b"\x01\x00\x01\x00\x00\x00\x00\x01x"])
def test_what_is_not_a_stream_of_frames(data: bytes) -> None:
    with pytest.raises(ValueError):
        Demultiplexer(OutputCollector().receive).feed(data)


def test_a_log_keeps_the_order_of_both_streams() -> None:
    tail = Tail(100)
    tail.feed(frame(2, b"a") + frame(1, b"b") + frame(2, b"c"))
    assert tail.text() == "abc"


@pytest.mark.parametrize("framed", [True, False])
def test_of_a_long_log_the_end_is_kept_in_whole_lines(framed: bool) -> None:
    tail = Tail(1000)
    for number in range(10_000):
        line = f"line {number}\n".encode()
        tail.feed(frame(1, line) if framed else line)
    lines = tail.text().splitlines()
    assert lines == [f"line {number}" for number in range(10_000 - len(lines), 10_000)] and len(lines) > 50
    assert len(tail.text()) <= 1000
    assert tail.lines == 10_000  # counted in what was written, not in the frames: a header may hold the same byte


def test_lines_of_two_streams_are_not_mixed() -> None:
    seen: list[str] = []
    lines = OutputCollector(seen.append)
    for channel, data in ((1, b"a"), (2, b"x\r\n"), (1, b"b\nc"), (2, b"y")):
        lines.receive(channel, data)
    lines.result(0)
    assert seen == ["x", "ab", "c", "y"]


def test_a_line_without_an_end_is_cut() -> None:
    seen: list[str] = []
    OutputCollector(seen.append).receive(1, b"x" * (LONGEST_LINE + 1))
    assert [len(line) for line in seen] == [LONGEST_LINE + 1]
