"""The end of a container's log, in bounded memory."""

from __future__ import annotations

_HEADER = 8  # bytes before each part of a stream: channel, 3 zero bytes, length, big endian


class Tail:
    """The end of a log, stdout and stderr in the order they came. The log of a terminal has no
    headers.

    The SDK's own reader keeps no time limit and takes the text of an HTTP error for a header.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._head = bytearray()
        self._left = 0  # bytes of the part
        self._plain = False
        self.lines = 0  # that came, kept or not

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the answer, cut anywhere."""
        view = memoryview(data)
        while view:
            if self._plain or self._left:
                size = len(view) if self._plain else self._left
                part = bytes(view[:size])
                view = view[size:]
                self._left = max(0, self._left - len(part))
                self._keep(part)
                continue
            wanted = _HEADER - len(self._head)
            self._head += view[:wanted]
            view = view[wanted:]
            if self._head[0] > 3 or any(self._head[1:4]):
                self._plain = True
                self._keep(bytes(self._head))
            elif len(self._head) == _HEADER:
                self._left = int.from_bytes(self._head[4:], "big")
                self._head.clear()

    def _keep(self, data: bytes) -> None:
        self.lines += data.count(b"\n")
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    def text(self) -> str:
        """Whole lines, unless one alone is longer than the limit."""
        if len(self._kept) > self._limit:
            del self._kept[: -self._limit]
            del self._kept[: self._kept.find(b"\n") + 1]
        return self._kept.decode(errors="replace")
