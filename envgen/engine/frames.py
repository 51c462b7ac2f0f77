"""Docker's stream format: frames of stdout and stderr mixed in one connection. Pure; fed with bytes as they come."""

from __future__ import annotations

from envgen.engine.base import OUTPUT_LIMIT

_HEADER = 8  # 1 byte channel, 3 zero bytes, 4 bytes length, big endian


class OutputTooLong(Exception):
    """A program wrote more than the limit."""


class Demultiplexer:
    """Collects frames into ``stdout`` and ``stderr``. Frames may be cut anywhere between two calls of ``feed``."""

    def __init__(self, limit: int = OUTPUT_LIMIT, *, interleave: bool = False) -> None:
        self._limit = limit
        self._interleave = interleave  # all of it into stdout, in the order that it came
        self._rest = bytearray()
        self._out: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}

    @property
    def stdout(self) -> bytes:
        return bytes(self._out[1])

    @property
    def stderr(self) -> bytes:
        return bytes(self._out[2])

    @property
    def complete(self) -> bool:
        """False while a frame is cut: the connection broke off in the middle."""
        return not self._rest

    def feed(self, data: bytes) -> None:
        """Take in what the connection gave. Raises OutputTooLong, and ValueError for what is no frame."""
        self._rest += data
        start = 0
        while len(self._rest) - start >= _HEADER:
            channel = self._rest[start]
            if channel > 3 or any(self._rest[start + 1 : start + 4]):
                raise ValueError("the engine's answer is not a stream of frames")
            size = int.from_bytes(self._rest[start + 4 : start + _HEADER], "big")
            if sum(map(len, self._out.values())) + size > self._limit:
                raise OutputTooLong
            if len(self._rest) - start < _HEADER + size:
                break
            # 0 is stdin echoed, 3 the engine's own error text; both belong with stderr.
            into = self._out[1 if channel == 1 or self._interleave else 2]
            into += self._rest[start + _HEADER : start + _HEADER + size]
            start += _HEADER + size
        del self._rest[:start]
