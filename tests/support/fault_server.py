"""A STAND-IN for a server that fails: a real HTTP server on loopback that goes wrong in one chosen way."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from local import Quiet, serving

GOOD = [" one", " two", " three"]


class _Handler(Quiet):
    protocol_version = "HTTP/1.1"
    server: FaultServer

    def document(self, status: int, body: str) -> None:
        self.reply(body.encode(), status)

    def do_GET(self) -> None:
        if self.server.fault == "loading":
            self.document(503, '{"error": "loading"}')
        elif self.server.fault == "no server":
            self.document(200, "<html>It works!</html>")
        else:
            rows: list[dict[str, Any]] = [{"id": "tiny", "root": "/models/tiny", "max_model_len": 512}]
            if self.server.fault.startswith("answers as "):
                rows += [{**rows[0], "id": "alias"}, {"id": "adapter", "root": "/adapters/a", "parent": "tiny"}]
            self.document(200, json.dumps({"data": rows}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests += 1
            fault = self.server.fault if self.server.requests > self.server.good else ""
        if self.headers.get("Authorization") not in (None, "Bearer s3cret"):
            self.document(401, "{}")
        elif fault == "500":
            self.document(500, '{"error": {"message": "EngineCore died"}}')
        elif fault == "hangs":
            self.server.closing.wait(30)
        elif fault == "dies":
            self.server.die()
        elif fault == "no template" and "messages" in body:
            self.document(400, '{"error": {"message": "a chat template is needed"}}')
        elif "messages" in body:
            self.chat(body, fault)
        elif not body.get("stream"):
            name = fault.removeprefix("answers as ") if fault.startswith("answers as ") else "tiny"
            text = "" if fault == "no token" else "".join(GOOD)
            self.document(200, json.dumps({"model": name, "choices": [{"text": text}]}))
        else:
            self.stream(body, fault)

    def chat(self, body: dict[str, Any], fault: str) -> None:
        finish, null = "stop", {"content": None, "reasoning": None}
        parts: list[dict[str, Any]] = [{"content": text} for text in GOOD]
        if body.get("tools"):
            call = {"index": 0, "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
            parts, finish = [null] if fault == "null tool" else [{"tool_calls": [call]}], "tool_calls"
        elif "harmony" in fault:
            parts = [{"content": "<|channel|>"} for _ in GOOD]
        elif fault == "null chat":
            parts = [null]
        elif fault in ("reasoning alone", "cut off while it thinks"):
            parts = [{"content": None, "reasoning_content": text} for text in GOOD]
            finish = "stop" if fault == "reasoning alone" else "length"
        self.stream(body, fault, [{"delta": one} for one in parts], finish)

    def stream(self, body: dict[str, Any], fault: str, parts: Any = (), finish: str = "length") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chance = float("nan") if "nan" in fault else -0.5
        logprobs = {"token_logprobs": [chance]} if body.get("logprobs") else None
        # As vLLM: of several names of a model, it answers with the first.
        name = fault.removeprefix("answers as ") if fault.startswith("answers as ") else "tiny"
        for part in parts or [{"text": text, "logprobs": logprobs} for text in GOOD]:
            self.event({"model": name, "choices": [part]})
            if fault == "half an event":
                self.chunk(b'data: {"choices": [{"te')
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if fault == "error in the stream":
                self.event({"error": {"message": "CUDA error: an illegal memory access"}})
                self.chunk(b"")
                return
        self.event({"choices": [{"finish_reason": finish}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(GOOD)}})
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
        self.fault, self.good, self.requests = fault, good, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.closing, self.lock = threading.Event(), threading.Lock()
        self._open: list[socket.socket] = []

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
    with serving(server):
        try:
            yield server
        finally:
            server.closing.set()
