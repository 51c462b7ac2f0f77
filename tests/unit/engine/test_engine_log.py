"""A container's log: Docker's mixed stream, cut anywhere, of which only the end is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.log import Tail


def frame(channel: int, data: bytes) -> bytes:
    return bytes([channel, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


PARTS = st.lists(st.tuples(st.sampled_from([1, 2]), st.text(st.characters(codec="ascii"), max_size=50)))


@given(PARTS, st.lists(st.integers(1, 20), min_size=1))
def test_cut_anywhere_it_is_the_same(parts: list[tuple[int, str]], cuts: list[int]) -> None:
    data = b"".join(frame(channel, part.encode()) for channel, part in parts)
    tail, at, step = Tail(1 << 20), 0, 0
    while at < len(data):
        tail.feed(data[at : at + cuts[step % len(cuts)]])
        at += cuts[step % len(cuts)]
        step += 1
    assert tail.text() == "".join(part for _, part in parts)


@given(st.lists(st.binary()))
def test_any_bytes_are_a_log(pieces: list[bytes]) -> None:
    tail = Tail(100)
    for piece in pieces:
        tail.feed(piece)
    assert len(tail.text().encode()) <= 400


@pytest.mark.parametrize("data", [b"plain text, no frames\n", b"\x01\x00\x01plain"])
def test_what_is_not_a_stream_of_frames_is_the_log_of_a_terminal(data: bytes) -> None:
    tail = Tail(100)
    for byte in data:
        tail.feed(bytes([byte]))
    assert tail.text() == data.decode()


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
