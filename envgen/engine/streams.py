"""What a program in a container reads and writes, over a connection of the engine: bounded in time and in size."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import requests

from envgen.engine.values import OUTPUT_LIMIT
from envgen.errors import EngineError
from envgen.text import reason_of

LONGEST_LINE = 1 << 20
_HEADER = 8  # 1 byte channel, 3 zero bytes, 4 bytes length, big endian


class StreamTimeout(Exception):
    """The time for a program inside a container is up."""


class OutputTooLong(Exception):
    """A program wrote more than the limit."""


class Demultiplexer:
    """Docker's frames of stdout and stderr, cut anywhere between two calls of ``feed``."""

    def __init__(self, take: Callable[[int, bytes], None]) -> None:
        self._take = take
        self._head = bytearray()
        self._channel = 0
        self._left = 0

    @property
    def complete(self) -> bool:
        """False while a frame is cut: the connection broke off in the middle."""
        return not self._head and not self._left

    def feed(self, data: bytes) -> None:
        """Hand out what the connection gave as (channel, bytes). ValueError for what is not a frame."""
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                # 0 is stdin echoed, 3 the engine's own error text; both belong with stderr.
                self._take(1 if self._channel == 1 else 2, bytes(part))
                continue
            wanted = _HEADER - len(self._head)
            self._head += view[:wanted]
            view = view[wanted:]
            if self._head[0] > 3 or any(self._head[1:4]):
                raise ValueError("the engine's answer is not a stream of frames")
            if len(self._head) == _HEADER:
                self._channel, self._left = self._head[0], int.from_bytes(self._head[4:], "big")
                self._head.clear()


class Output:
    """Collects what a program writes. Raises OutputTooLong."""

    def __init__(self, limit: int = OUTPUT_LIMIT) -> None:
        self._limit = limit
        self.stdout = bytearray()
        self.stderr = bytearray()

    def take(self, channel: int, data: bytes) -> None:
        into = self.stdout if channel == 1 else self.stderr
        into += data
        if len(self.stdout) + len(self.stderr) > self._limit:
            raise OutputTooLong


class Tail:
    """The last bytes of a container's log, both streams as they came. One with a terminal has no frames."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._frames: Demultiplexer | None = Demultiplexer(lambda _channel, data: self._keep(data))

    def feed(self, data: bytes) -> None:
        """Take in a part of the answer."""
        if self._frames is not None:
            try:
                self._frames.feed(data)
                return
            except ValueError:
                self._frames = None
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    def text(self) -> str:
        """Whole lines, unless one alone is longer than the limit."""
        if len(self._kept) > self._limit:
            del self._kept[: -self._limit]
            del self._kept[: self._kept.find(b"\n") + 1]
        return self._kept.decode(errors="replace")


class Lines:
    """Hands out what a program writes line by line, stdout and stderr each for itself."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = {1: b"", 2: b""}

    def take(self, channel: int, data: bytes) -> None:
        *lines, rest = (self._rest[channel] + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest[channel] = rest
        for line in lines:
            self._on_line(line.decode(errors="replace").removesuffix("\r"))

    def end(self) -> None:
        """The last lines, if they had no end."""
        for rest in self._rest.values():
            if rest:
                self._on_line(rest.decode(errors="replace"))


class Attached:
    """A connection that became a program's stdin, stdout and stderr.

    ``hold``: its stdin stays open until the program ends, so that its end means that we are gone.
    """

    def __init__(self, response: requests.Response, *, hold: bool = False) -> None:
        self._response = response
        self._reader: io.BufferedReader = cast("Any", response.raw)._fp.fp
        self._sock: socket.socket = cast("Any", self._reader).raw._sock
        self._hold = hold

    def communicate(self, stdin: bytes, timeout: float, take: Callable[[int, bytes], None]) -> None:
        """Send ``stdin``, then read to the end. Raises StreamTimeout, and what ``take`` raises."""
        with contextlib.closing(self.parts(stdin, timeout)) as parts:
            for channel, data in parts:
                take(channel, data)

    def parts(self, stdin: bytes, timeout: float) -> Generator[tuple[int, bytes], None, None]:
        """Send ``stdin``; what the program writes, by channel. Raises StreamTimeout."""
        found: list[tuple[int, bytes]] = []
        frames = Demultiplexer(lambda channel, data: found.append((channel, data)))
        # In a thread: a program may fill its output before it has read all of its input.
        writer = threading.Thread(target=self._write, args=(stdin,), daemon=True)
        writer.start()
        try:
            for data in self._chunks(time.monotonic() + timeout):
                frames.feed(data)
                yield from found
                found.clear()
        finally:
            self.close()
            writer.join(timeout=5)

    def _chunks(self, deadline: float) -> Iterator[bytes]:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise StreamTimeout
            self._sock.settimeout(left)
            try:
                # What followed the head may be in the reader's buffer already.
                data = self._reader.read1(1 << 20)
            except TimeoutError:
                raise StreamTimeout from None
            if not data:
                return
            yield data

    def _write(self, stdin: bytes) -> None:
        with contextlib.suppress(OSError):  # the program ended without reading all: its own affair
            if stdin:
                self._sock.sendall(stdin)
            if not self._hold:
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the writer where it still waits
        self._response.close()


def talk(
    stream: Attached,
    stdin: bytes,
    timeout: float,
    what: str,
    take: Callable[[int, bytes], None],
    kill: Callable[[], None],
) -> None:
    """Run a stream to its end. Whatever goes wrong, the program is ended before the error is reported."""
    try:
        stream.communicate(stdin, timeout, take)
        return
    except StreamTimeout:
        reason = f"{what} did not end within {timeout:g} s"
    except OutputTooLong:
        reason = f"{what} wrote more than {OUTPUT_LIMIT >> 20} MiB"
    except (OSError, ValueError) as error:
        reason = f"{what}: the connection to the engine broke off: {reason_of(error)}"
    except BaseException:
        with contextlib.suppress(Exception):
            kill()
        raise
    with contextlib.suppress(EngineError):
        kill()
    raise EngineError(reason)
