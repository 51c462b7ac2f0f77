"""A STAND-IN for a server that fails: a real HTTP server on loopback that goes wrong in one chosen way."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator

GOOD = [" one", " two", " three"]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultServer

    def log_message(self, *_: object) -> None:
        pass

    def document(self, status: int, body: bytes, kind: str = "application/json", pieces: int = 1) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        step = -(-len(body) // pieces)
        for start in range(0, len(body), step):
            time.sleep(0.3 if start else 0)
            self.wfile.write(body[start : start + step])
            self.wfile.flush()

    def do_GET(self) -> None:
        if self.server.fault == "loading":
            self.document(503, b'{"error": "loading"}')
        elif self.server.fault == "no server":
            self.document(200, b"<html>It works!</html>", "text/html")
        else:
            body = json.dumps({"data": [{"id": "tiny", "max_model_len": 512}]}).encode()
            slowly = self.server.fault == "models in two pieces"
            self.document(200, body, pieces=2 if slowly else 1)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") not in (None, "Bearer s3cret"):
            self.document(401, b"{}")
            return
        if body["model"] != "tiny":
            self.document(404, b'{"error": {"message": "The model does not exist."}}')
            return
        number = self.server.count()
        # The first requests find out how the server is; the fault comes in the middle of the run.
        fault = self.server.fault if number > self.server.good else ""
        if fault == "500":
            self.document(500, b'{"error": {"message": "EngineCore died"}}')
        elif fault == "garbage":
            self.document(200, b"<html>Bad gateway</html>", "text/html")
        elif fault == "hangs":
            self.server.closing.wait(30)
        elif fault == "dies":
            self.server.die()
        else:
            self.stream(body, fault)

    def stream(self, body: dict[str, object], fault: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chance = float("nan") if fault == "nan" else -0.5
        chat = "messages" in body
        for piece in GOOD:
            logprobs = {"token_logprobs": [chance]} if body.get("logprobs") else None
            text = "<|channel|>" if fault == "harmony" and chat else piece
            part = {"delta": {"content": text}} if chat else {"text": piece}
            self.event({"choices": [{**part, "logprobs": logprobs, "finish_reason": None}]})
            if fault == "half an event":
                self.chunk(b'data: {"choices": [{"te')
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if fault == "error in the stream":
                self.event({"error": {"message": "CUDA error: an illegal memory access"}})
                self.chunk(b"")
                return
        self.event({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        tokens = {"prompt_tokens": len(str(body.get("prompt")).split()), "completion_tokens": len(GOOD)}
        self.event({"choices": [], "usage": tokens})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, document: object) -> None:
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


class FaultServer(http.server.ThreadingHTTPServer):
    """``good`` requests are answered well before ``fault`` begins."""

    daemon_threads = True

    def __init__(self, fault: str, good: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault = fault
        self.good = good
        self.requests = 0
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self) -> int:
        with self._lock:
            self.requests += 1
            return self.requests

    def get_request(self) -> tuple[socket.socket, object]:
        found = super().get_request()
        self._open.append(found[0])
        return found

    def die(self) -> None:
        """As the kernel does it: the port closes, and every connection with it."""
        self.socket.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def fault_server(fault: str = "", good: int = 0) -> Iterator[FaultServer]:
    """Serve until the block ends."""
    server = FaultServer(fault, good)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown() if thread.is_alive() else None
        server.server_close()
