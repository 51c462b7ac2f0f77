"""A tiny client of the Docker Engine API over its unix socket, from the standard library alone.

The SDK is complete, but importing it takes 200 ms, and one question to the socket takes 10. What envgen asks often (is
the image there, run this in that container) goes through here; other kinds of endpoint go through ``docker.py``.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, Protocol, cast
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

    can_stream: bool

    def stream(self, path: str, query: Mapping[str, str] | None, body: Any) -> Stream:
        """Take over the connection of a POST; only where ``can_stream``."""


class Answer:
    """Status, body and headers (lower-case names) of one answer."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = headers or {}

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
        if self.status >= 300:  # the engine redirects paths with empty or relative parts: a name that is none
            raise EngineError(f"{what}: {self.message or f'the engine answered {self.status}'}")
        return self.document


class UnixApi:
    """The API over a unix socket. Each thread has a connection of its own, kept open between requests.

    HTTP is spoken by hand: importing ``http.client`` (with email and ssl) takes longer than all requests together.
    """

    can_stream = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._of_thread = threading.local()

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        message = _message(method, path, query, body)
        # The engine closes connections that were idle for long. A request on a fresh connection is not repeated: what
        # was answered by silence may have been done.
        kept: socket.socket | None = getattr(self._of_thread, "sock", None)
        for sock in (*([kept] if kept else []), None):
            try:
                return self._exchange(sock or self._open(), message)
            except (BrokenPipeError, ConnectionResetError, _Closed):
                self._forget()
                if sock is None:
                    raise EngineError("the Docker Engine closed the connection without an answer") from None
            except TimeoutError:
                self._forget()
                raise EngineError(f"the Docker Engine did not answer within {TIMEOUT:g} s") from None
            except (FileNotFoundError, PermissionError, ConnectionRefusedError, NotADirectoryError):
                raise  # connect() has the right sentence for each
            except OSError as error:
                self._forget()
                raise EngineError(f"cannot talk to the Docker Engine at {self._path}: {error}") from None
            except BaseException:
                self._forget()  # half an answer is still in the connection
                raise
        raise AssertionError("unreachable")

    def _open(self) -> socket.socket:
        sock = self._of_thread.sock = connect_unix(self._path)
        sock.settimeout(TIMEOUT)
        return sock

    def _forget(self) -> None:
        sock: socket.socket | None = getattr(self._of_thread, "sock", None)
        if sock is not None:
            sock.close()
        self._of_thread.sock = None

    def _exchange(self, sock: socket.socket, message: bytes) -> Answer:
        sock.sendall(message)
        with sock.makefile("rb") as reader:
            status, headers = _read_head(reader)
            body = _read_body(reader, status, headers)
        if headers.get("connection", "").lower() == "close":
            self._forget()
        return Answer(status, body, headers)

    def stream(self, path: str, query: Mapping[str, str] | None, body: Any) -> Stream:
        message = _message("POST", path, query, body, upgrade=True)
        sock = connect_unix(self._path)
        try:
            sock.settimeout(TIMEOUT)
            sock.sendall(message)
            # Unbuffered: what follows the head already belongs to the program.
            with cast("IO[bytes]", sock.makefile("rb", buffering=0)) as reader:
                status, headers = _read_head(reader)
                if status not in (101, 200):
                    answer = Answer(status, _read_body(reader, status, headers))
                    raise EngineError(f"the engine refused: {answer.message or status}")
            return Stream(sock)
        except TimeoutError:
            sock.close()
            raise EngineError(f"the Docker Engine did not answer within {TIMEOUT:g} s") from None
        except _Closed:
            sock.close()
            raise EngineError("the Docker Engine closed the connection without an answer") from None
        except BaseException:
            sock.close()
            raise


class Stream:
    """A connection that became a program's stdin, stdout and stderr."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def communicate(self, stdin: bytes, timeout: float) -> Demultiplexer:
        """Send ``stdin``, then read to the end. Raises StreamTimeout, OutputTooLong."""
        deadline = time.monotonic() + timeout
        output = Demultiplexer()
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


class _Closed(Exception):
    """The connection ended before the answer did."""


def _message(method: str, path: str, query: Mapping[str, str] | None, body: Any, *, upgrade: bool = False) -> bytes:
    target = f"{path}?{urlencode(query)}" if query else path
    if re.search(r"[\x00-\x20\x7f]", target):
        raise EngineError(f"{path!r} cannot be asked for: it contains blanks or control characters")
    payload = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(payload)}"]
    lines += ["Connection: Upgrade", "Upgrade: tcp"] if upgrade else []
    lines += ["Content-Type: application/json"] if body is not None else []
    return "\r\n".join([*lines, "", ""]).encode() + payload


def _read_head(reader: IO[bytes]) -> tuple[int, dict[str, str]]:
    """Status and headers (lower-case names) of an answer."""
    first = _read_line(reader)
    found = re.match(rb"HTTP/1\.[01] (\d{3})", first)
    if not found:
        raise EngineError("the engine's answer is not HTTP: is this address a Docker Engine's?")
    headers: dict[str, str] = {}
    while line := _read_line(reader).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > 200:
            raise EngineError("the engine's answer has too many headers")
    return int(found[1]), headers


def _read_body(reader: IO[bytes], status: int, headers: Mapping[str, str]) -> bytes:
    if status in (204, 304) or 100 <= status < 200:
        return b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        chunks = []
        while size := _size(_read_line(reader).split(b";")[0].strip(), 16):
            chunks.append(_read_exactly(reader, size))
            _read_line(reader)
        while _read_line(reader).strip():
            pass  # trailers
        return b"".join(chunks)
    if "content-length" in headers:
        return _read_exactly(reader, _size(headers["content-length"].encode(), 10))
    return reader.read()


def _size(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise EngineError("the engine's answer is not HTTP: is this address a Docker Engine's?") from None


def _read_line(reader: IO[bytes]) -> bytes:
    line = reader.readline(1 << 16)
    if not line:
        raise _Closed
    return line


def _read_exactly(reader: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = reader.read(size - len(data))
        if not more:
            raise _Closed
        data += more
    return data
