"""What tests do on this machine: take a free port, wait until something holds, serve HTTP on loopback."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator


def free_port() -> int:
    """A TCP port that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def until(holds: Callable[[], object], otherwise: Callable[[], object] | str = "", seconds: float = 120) -> None:
    """Wait until it holds. The limit is for what never comes: no test is about how long it takes."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, (
            otherwise() if callable(otherwise) else otherwise or "it did not come to pass"
        )
        time.sleep(0.05)


class Quiet(http.server.BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def reply(self, body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        """Answer; ``headers`` with underscores for dashes."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(
    server: http.server.HTTPServer | type[http.server.BaseHTTPRequestHandler], host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve until the block ends, on a free port where only a handler is given; gives the address."""
    if isinstance(server, type):
        server = http.server.ThreadingHTTPServer((host, 0), server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{server.server_address[0]!s}:{server.server_port}"
    finally:
        if thread.is_alive():
            server.shutdown()
        server.server_close()
