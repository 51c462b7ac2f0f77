"""A tiny client of the Docker Engine API over its unix socket, from the standard library alone.

The SDK is complete, but importing it takes 200 ms, and one question to the socket takes 10. What envgen asks often (is
the image there, run this in that container) goes through here; other kinds of endpoint go through ``docker.py``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from envgen.engine.frames import Demultiplexer
from envgen.errors import EngineError

# The engine answers in milliseconds; a busy one (many layers being deleted) has been seen to take seconds.
TIMEOUT = 60.0


class StreamTimeout(Exception):
    """The time for a program inside a container is up."""


class Api(Protocol):
    """One connection to an engine's HTTP API."""

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """One request. Raises EngineError when the engine can't be reached."""

    def stream(self, path: str, query: Mapping[str, str] | None, body: Any) -> Stream | None:
        """Take over the connection of a POST; None where this client can't."""


class Answer:
    """Status and body of one answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def document(self) -> Any:
        """The body as JSON; None when it is empty."""
        try:
            return json.loads(self.body) if self.body.strip() else None
        except ValueError:
            raise EngineError("the engine's answer is not JSON: is this address a Docker Engine's?") from None

    @property
    def message(self) -> str:
        """The engine's own words about a failure."""
        try:
            return str(json.loads(self.body)["message"])
        except (ValueError, KeyError, TypeError):
            return self.body.decode(errors="replace").strip()[:500]

    def check(self, what: str) -> Any:
        """The document, or EngineError with the engine's own words."""
        if self.status >= 400:
            raise EngineError(f"{what}: {self.message or f'the engine answered {self.status}'}")
        return self.document


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = connect_unix(self._path)
        self.sock.settimeout(TIMEOUT)


class UnixApi:
    """The API over a unix socket. Each thread has a connection of its own, kept open between requests."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._of_thread = threading.local()

    @property
    def _connection(self) -> _UnixConnection:
        found: _UnixConnection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            found = self._of_thread.connection = _UnixConnection(self._path)
        return found

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        target, payload, headers = _prepared(path, query, body)
        # The engine closes connections that were idle for long; a request that it never read is safe to repeat.
        for attempt in (1, 2):
            try:
                self._connection.request(method, target, body=payload, headers=headers)
                response = self._connection.getresponse()
                return Answer(response.status, response.read())
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()
                if attempt == 2:
                    raise EngineError("the Docker Engine closed the connection without an answer") from None
            except (FileNotFoundError, PermissionError, ConnectionRefusedError):
                raise  # connect() has the right sentence for each
            except TimeoutError:
                self._connection.close()
                raise EngineError(f"the Docker Engine did not answer within {TIMEOUT:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                raise EngineError(f"cannot talk to the Docker Engine at {self._path}: {error}") from None
        raise AssertionError("unreachable")

    def stream(self, path: str, query: Mapping[str, str] | None, body: Any) -> Stream:
        target, payload, headers = _prepared(path, query, body)
        head = [f"POST {target} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: tcp"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        head += [f"Content-Length: {len(payload or b'')}", "", ""]
        sock = connect_unix(self._path)
        try:
            sock.settimeout(TIMEOUT)
            sock.sendall("\r\n".join(head).encode() + (payload or b""))
            return Stream(sock, _read_head(sock))
        except TimeoutError:
            sock.close()
            raise EngineError(f"the Docker Engine did not answer within {TIMEOUT:g} s") from None
        except BaseException:
            sock.close()
            raise


class Stream:
    """A connection that became a program's stdin, stdout and stderr."""

    def __init__(self, sock: socket.socket, first: bytes = b"") -> None:
        self._sock = sock
        self._first = first

    def communicate(self, stdin: bytes, timeout: float) -> Demultiplexer:
        """Send ``stdin``, then read to the end. Raises StreamTimeout, OutputTooLong."""
        deadline = time.monotonic() + timeout
        output = Demultiplexer()
        output.feed(self._first)
        # In a thread: a program may fill its output before it has read all of its input.
        writer = threading.Thread(target=self._write, args=(stdin,), daemon=True)
        writer.start()
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StreamTimeout
                self._sock.settimeout(left)
                try:
                    data = self._sock.recv(1 << 16)
                except TimeoutError:
                    raise StreamTimeout from None
                if not data:
                    return output
                output.feed(data)
        finally:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the writer where it still waits
            self._sock.close()
            writer.join(timeout=5)

    def _write(self, stdin: bytes) -> None:
        with contextlib.suppress(OSError):  # the program ended without reading all: its own affair
            if stdin:
                self._sock.sendall(stdin)
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


def connect_unix(path: str) -> socket.socket:
    """A connected unix socket; OSError as the system gives it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(10)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepared(path: str, query: Mapping[str, str] | None, body: Any) -> tuple[str, bytes | None, dict[str, str]]:
    target = f"{path}?{urlencode(query)}" if query else path
    if body is None:
        return target, None, {}
    return target, json.dumps(body).encode(), {"Content-Type": "application/json"}


def _read_head(sock: socket.socket) -> bytes:
    """Read the head of the answer to an upgrade; returns the bytes that came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(1 << 14)
        if not more or len(data) > 1 << 16:
            raise EngineError("the Docker Engine closed the connection without an answer")
        data += more
    head, rest = data.split(b"\r\n\r\n", 1)
    try:
        status = int(head.split(None, 2)[1])
    except (IndexError, ValueError):
        raise EngineError("the engine's answer is not HTTP: is this address a Docker Engine's?") from None
    if status not in (101, 200):
        size = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        while size and len(rest) < int(size[1]) and (more := sock.recv(1 << 14)):
            rest += more
        raise EngineError(f"the engine refused: {Answer(status, rest).message or status}")
    return rest
