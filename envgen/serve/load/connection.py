"""One HTTP/1.1 connection for streamed replies. httptools reads the protocol; this notes when bytes arrive.

A reply's bytes are stamped as they come off the socket, before anything is made of them. Why not aiohttp: it was
measured (docs/benchmarks.md), and its own work showed in the latency of 64 streams.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass, field
from time import perf_counter
from urllib.parse import urlsplit

import httptools

from envgen.errors import UsageError
from envgen.serve.events import Part


class Broken(Exception):
    """The request got no whole reply. ``kind`` is one word, for counting; ``str`` is the sentence."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Received:
    """A whole reply: its status, its bytes with their arrival, and its last byte's arrival."""

    status: int
    parts: list[Part]
    ended: float


@dataclass(frozen=True)
class Address:
    """Where requests go: taken apart once, for every connection."""

    host: str
    port: int
    prefix: str  # of every path
    tls: ssl.SSLContext | None
    headers: bytes = field(repr=False)  # may hold a key

    def request(self, path: str, body: bytes) -> bytes:
        """A whole POST request."""
        return b"POST %b%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
            self.prefix.encode(), path.encode(), self.headers, len(body), body,
        )  # fmt: skip


def address(url: str, key: str = "") -> Address:
    """Take apart ``url`` (http://host:port or https://...); ``key``: a bearer token. UsageError if it is no URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c in url for c in " \r\n\t"):
        raise UsageError(f"{url!r} is no address of a server", hint="it looks like http://127.0.0.1:8000")
    if any(ord(c) < 33 or ord(c) > 126 for c in key):
        raise UsageError("the API key holds a character that no HTTP header may hold")
    secure = parts.scheme == "https"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if secure else 80)
    lines = [
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "User-Agent: envgen",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    headers = "".join(f"{line}\r\n" for line in lines).encode("ascii", errors="replace")
    context = ssl.create_default_context() if secure else None
    return Address(parts.hostname, port, parts.path.rstrip("/"), context, headers)


class Connection(asyncio.Protocol):
    """One request at a time. ``usable`` tells whether another may follow."""

    def __init__(self) -> None:
        self.usable = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Received] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parts: list[Part] = []
        self._now = 0.0
        self._until_closed = True
        self._began_reply = False

    # --- what asyncio calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.usable = True

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        if self._parser is None:
            self.close()  # it speaks unasked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("garbage", f"the server's answer is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._waiter is None or self._waiter.done():
            return
        if self._began_reply and self._until_closed and error is None:
            self.on_message_complete()
        elif self._began_reply:
            self._fail("cut", f"the server closed the connection in the middle of a reply ({_size(self._parts)})")
        else:
            self._fail("closed", "the server closed the connection without an answer")

    # --- what httptools calls ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_closed = False

    def on_headers_complete(self) -> None:
        self._began_reply = True

    def on_body(self, body: bytes) -> None:
        self._parts.append((self._now, body))

    def on_message_complete(self) -> None:
        parser, waiter = self._parser, self._waiter
        if parser is None or waiter is None or waiter.done():
            return
        if 100 <= parser.get_status_code() < 200:
            return  # an interim answer: the real one follows
        self._disarm()
        self.usable = self.usable and not self._until_closed and parser.should_keep_alive()
        waiter.set_result(Received(parser.get_status_code(), self._parts, self._now))

    # --- what we call -----------------------------------------------------------------------------------------------

    async def send(self, request: bytes, silence: float) -> Received:
        """Send a whole request and wait for the whole reply. Broken when ``silence`` seconds pass without a byte."""
        loop = asyncio.get_running_loop()
        assert self._transport is not None
        self._waiter = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._until_closed, self._began_reply = [], True, False
        self._now = perf_counter()
        self._watch(loop, silence)
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._disarm()
            self._parser = None
            if not self.usable:
                self.close()

    def close(self) -> None:
        """Close it now."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _watch(self, loop: asyncio.AbstractEventLoop, silence: float) -> None:
        """One timer a reply, set again only when it rings: a stream costs no timer for each of its bytes."""

        def ring() -> None:
            left = self._now + silence - perf_counter()
            if left > 0:
                self._timer = loop.call_later(left, ring)
                return
            what = f"after {_size(self._parts)} nothing more" if self._began_reply else "no answer"
            self._fail("timeout", f"{what} within {silence:g} s")

        self._timer = loop.call_later(silence, ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, kind: str, sentence: str) -> None:
        self.usable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Broken(kind, sentence))
        self.close()


def _size(parts: list[Part]) -> str:
    return f"{sum(len(part) for _, part in parts)} bytes"


class Pool:
    """Connections to one server, used again while the server keeps them open."""

    def __init__(self, where: Address, silence: float) -> None:
        self._where = where
        self._silence = silence
        self._idle: list[Connection] = []

    async def send(self, request: bytes) -> Received:
        """The whole reply. Raises Broken when there is none."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                continue
            try:
                return await self._use(connection, request)
            except Broken as error:
                # The server may close an idle connection at the moment that we use it: no fault of the server.
                if error.kind != "closed":
                    raise
        return await self._use(await self._open(), request)

    async def _use(self, connection: Connection, request: bytes) -> Received:
        try:
            received = await connection.send(request, self._silence)
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        return received

    async def _open(self) -> Connection:
        where = self._where
        loop = asyncio.get_running_loop()
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(Connection, where.host, where.port, ssl=where.tls), min(self._silence, 30)
            )
        except (TimeoutError, asyncio.TimeoutError):
            raise Broken("refused", f"no connection to {where.host}:{where.port} in time") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error.strerror or str(error)
            raise Broken("refused", f"no connection to {where.host}:{where.port}: {reason}") from None
        return connection

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
