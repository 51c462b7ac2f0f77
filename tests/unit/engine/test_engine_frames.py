"""Docker's mixed stream, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.frames import Demultiplexer, OutputTooLong


def frame(channel: int, data: bytes) -> bytes:
    return bytes([channel, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50))), st.lists(st.integers(1, 20), min_size=1))
def test_cut_anywhere_it_is_the_same(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame(channel, part) for channel, part in frames)
    output = Demultiplexer()
    at = step = 0
    while at < len(data):
        output.feed(data[at : at + cuts[step % len(cuts)]])
        at += cuts[step % len(cuts)]
        step += 1
    assert output.stdout == b"".join(part for channel, part in frames if channel == 1)
    assert output.stderr == b"".join(part for channel, part in frames if channel == 2)
    assert output.complete


def test_a_frame_that_is_cut_at_the_end_is_noticed() -> None:
    output = Demultiplexer()
    output.feed(frame(1, b"hello")[:-1])
    assert not output.complete and output.stdout == b""


def test_the_engine_s_own_error_goes_to_stderr() -> None:
    output = Demultiplexer()
    output.feed(frame(3, b"broken"))
    assert output.stderr == b"broken"


def test_interleaved_keeps_the_order() -> None:
    output = Demultiplexer(interleave=True)
    output.feed(frame(2, b"a") + frame(1, b"b") + frame(2, b"c"))
    assert output.stdout == b"abc"


def test_the_limit_is_checked_before_the_data_is_there() -> None:
    output = Demultiplexer(limit=10)
    output.feed(frame(1, b"12345"))
    with pytest.raises(OutputTooLong):
        output.feed(frame(2, b"x" * (1 << 31 >> 10))[:9])


@pytest.mark.parametrize("data", [b"plain text, no frames", b"\x01\x00\x01\x00\x00\x00\x00\x01x"])
def test_what_is_no_stream_of_frames(data: bytes) -> None:
    with pytest.raises(ValueError):
        Demultiplexer().feed(data)
