"""One HTTP request to a socket or a TCP port, by the standard library: no proxy, no redirect, no login of ~/.netrc.

Importing `requests` takes more CPU time than all of `docker compose ps`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

CONNECT = 10.0  # seconds
_BLOCK = 64 << 10  # bytes
_TCP = 2375  # the port of tcp://HOST


class NotCarried(ConnectionError):
    """A request that can't be sent as it is, for example an API key with a newline."""


class _ToSocket(HTTPConnection):
    """A connection to a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def send(
    url: str, method: str, path: str, *, timeout: float, document: Any = None, headers: Mapping[str, str] | None = None
) -> HTTPResponse:
    """The beginning of the answer; its body comes with ``blocks``. OSError without one.

    ``url``: unix://SOCKET, or tcp, http or https://HOST:PORT. ``timeout``: seconds between two bytes.
    """
    with _only_os_errors():
        parts = urlsplit(url)
        if parts.scheme == "unix":
            connection: HTTPConnection = _ToSocket(parts.path)
        else:
            port = parts.port or (_TCP if parts.scheme == "tcp" else None)
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            connection = kind(parts.hostname or "", port, timeout=min(CONNECT, timeout))
            path = parts.path.rstrip("/") + path
        body = None if document is None else json.dumps(document).encode()
        typed = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.connect()
            connection.sock.settimeout(timeout)
            connection.request(method, path, body, {**(headers or {}), **typed, "Connection": "close"})
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise


def blocks(response: HTTPResponse) -> Iterator[bytes]:
    """The body of an answer in pieces, as they come. ConnectionError where it ends in the middle."""
    left = response.length
    with _only_os_errors():
        while left != 0 and (data := response.read1(min(left or _BLOCK, _BLOCK))):
            left = None if left is None else left - len(data)
            yield data
    if left:
        raise ConnectionError("the connection was closed in the middle of an answer")


def body_of(response: HTTPResponse, largest: int) -> bytes:
    """The whole body; its beginning, of at least ``largest`` bytes, where it is larger."""
    body = bytearray()
    with response:
        for data in blocks(response):
            body += data
            if len(body) > largest:
                break
    return bytes(body)


@contextlib.contextmanager
def _only_os_errors() -> Iterator[None]:
    """What is no HTTP, and what HTTP does not carry, as a ConnectionError. No value of a header is in its text."""
    try:
        yield
    except OSError:
        raise
    except HTTPException as error:
        raise ConnectionError(f"the answer is not HTTP ({type(error).__name__})") from None
    except ValueError:
        raise NotCarried("the address or a header has characters that HTTP does not carry") from None
