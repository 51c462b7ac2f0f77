"""A real engine behind a socket that can keep back answers, fall silent, or go away with all connections."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path

from envgen.engine.endpoint import find_endpoint

_REQUEST = re.compile(rb"(GET|POST|DELETE|HEAD|PUT) (\S+) HTTP")


class Proxy:
    """Passes everything on, but the request ``at`` (from 0 on; -1: none); ``stops``: and nothing from then on, as a
    dockerd behind SIGSTOP, whose socket still takes connections."""

    def __init__(self, path: Path, at: int = -1, *, stops: bool = False) -> None:
        self.host = f"unix://{path}"
        self.asked: list[str] = []  # each request, behind whose it is
        self._at, self._stops, self._silent = at, stops, False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(find_endpoint().host.removeprefix("unix://"))
                self._socks += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if (request := _REQUEST.match(data)) is not None:
                    self.asked.append(f"{'envgen' if b'docker-sdk' in data else 'program'} {request[0].decode()}")
                    if len(self.asked) - 1 == self._at:
                        self._silent = self._stops
                        time.sleep(0 if self._stops else 600)
                while self._silent:
                    time.sleep(0.1)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """From now on nothing listens there, and what was connected is not."""
        self._silent = False
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
