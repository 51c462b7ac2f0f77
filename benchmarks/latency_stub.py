"""A STAND-IN for a server, of known latency: every completion takes FIRST seconds to its first token and GAP seconds to
each of the others, N tokens in all. With FIRST 0 everything is sent at once, as fast as it can.

    python benchmarks/latency_stub.py PORT FIRST GAP N

GET /stats tells how long each reply really took by the stub's own clock, in seconds, and forgets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = chunk(
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"stub",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
MODELS = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model", "max_model_len": 8192}]}).encode()


class Stub(asyncio.Protocol):
    """One connection; one reply at a time, as HTTP/1.1 wants it."""

    took: list[float] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, first: float, gap: float, tokens: int) -> None:
        self.first, self.gap, self.tokens = first, gap, tokens
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": tokens + 5}
        ended = json.dumps({"id": "cmpl-0", "choices": [], "usage": usage}).encode()
        self.tail = chunk(b"data: " + ended + b"\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self.rest) < end + 4 + length:
                return
            self.rest = self.rest[end + 4 + length :]
            self.answer(head)

    def answer(self, head: bytes) -> None:
        if head.startswith(b"get /stats"):
            self.document(json.dumps(self.took).encode())
            self.took.clear()
        elif head.startswith(b"get "):
            self.document(MODELS)
        elif self.first == 0:
            self.transport.write(HEAD + TOKEN * self.tokens + self.tail)
        else:
            loop = asyncio.get_running_loop()
            began = loop.time()
            loop.call_at(began + self.first, self.token, began, 1)

    def token(self, began: float, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write((HEAD if number == 1 else b"") + TOKEN)
        if number == self.tokens:
            self.transport.write(self.tail)
            self.took.append(loop.time() - began)
        else:
            loop.call_at(began + self.first + self.gap * number, self.token, began, number + 1)

    def document(self, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def main() -> None:
    port, first, gap, tokens = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(first, gap, tokens), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
