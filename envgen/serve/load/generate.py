"""Closed and open load.

Closed: N requests are under way at any time; the next one starts when one ends. Open: requests start at their times,
however slow the server is, and their latency counts from the time when they were due. So a server that stalls shows its
stall in every request that would have come in the meantime (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from envgen.serve.events import Part
from envgen.serve.load.connection import Address, Broken, Pool
from envgen.serve.load.reply import Reply, error_text, read_stream, shown

# So many requests in a row without any answer, and the server is gone: the others would only say the same.
GONE = 5
UNREAD = 1024  # replies that may wait to be read, before the next requests do
LOOK_EVERY = 1.0  # seconds between two questions whether the server is alive
SETTLE = 0.5  # seconds that open load waits before its first request, so that start-up doesn't count


@dataclass(frozen=True)
class Request:
    """A request ready to be sent. ``output_tokens``: how many it asks for."""

    raw: bytes = field(repr=False)
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Result:
    """One request and what came of it. Times are seconds since the load began; ``due`` is ``began`` in closed load.

    ``kind`` is empty when all is well, else one word (refused, closed, cut, timeout, status, garbage) and ``sentence``
    says what happened.
    """

    number: int
    request: Request
    due: float
    began: float
    ended: float
    status: int = 0
    reply: Reply = field(default_factory=Reply)
    kind: str = ""
    sentence: str = ""

    @property
    def good(self) -> bool:
        """True when a whole completion came."""
        return not self.kind

    @property
    def latency(self) -> float:
        """Seconds from the time it was due to its last byte."""
        return self.ended - self.due

    @property
    def ttft(self) -> float | None:
        """Seconds to the first generated text."""
        return self.reply.pieces_at[0] - self.due if self.reply.pieces_at else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text. A server may send several tokens in one piece."""
        at = self.reply.pieces_at
        return [after - before for before, after in itertools.pairwise(at)]

    @property
    def output_tokens(self) -> int:
        """Generated tokens by the server's own count; the number of pieces where it tells none."""
        told = self.reply.output_tokens
        return told if told is not None else len(self.reply.pieces_at)

    @property
    def tokens_after_first(self) -> float:
        """Tokens that came later than the first piece of text. When a server sends several pieces at once, all of those
        belong to the first one: no time passed between them that could be measured."""
        at = self.reply.pieces_at
        later = sum(1 for one in at if one > at[0])
        return self.output_tokens * later / len(at) if at else 0.0

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first piece; None when all came at once."""
        at = self.reply.pieces_at
        return self.tokens_after_first / (at[-1] - at[0]) if at and at[-1] > at[0] else None

    @property
    def prefill_tps(self) -> float | None:
        """Tokens of the prompt per second until the first generated text."""
        return self.reply.prompt_tokens / self.ttft if self.reply.prompt_tokens and self.ttft else None


@dataclass
class Load:
    """What came of a load. ``seconds`` from the first request to the last reply; ``gone`` says that it was given up."""

    results: list[Result]
    seconds: float
    gone: bool = False

    @property
    def lag(self) -> float:
        """Seconds that the generator itself was late with a request, at worst. Large: it limits what it measures."""
        return max((result.began - result.due for result in self.results), default=0.0)


OnResult = Callable[[Result], None]
Alive = Callable[[], bool]  # is the server's program still there? Called in a thread; may block


class Driver:
    """Sends requests and times them. ``on_result`` hears of each one as it ends; when it raises, the load ends.

    ``alive`` ends the load when it says no: the connections of a container that was killed may stay silent for ever.
    """

    def __init__(
        self, where: Address, *, silence: float, on_result: OnResult | None = None, alive: Alive | None = None
    ) -> None:
        self._pool = Pool(where, silence)
        self._on_result = on_result
        self._alive = alive
        self._dead = False
        self._failed = False  # on_result raised
        self._unread: asyncio.Queue[tuple[Result, list[Part]] | None] = asyncio.Queue()
        self._results: list[Result] = []
        self._zero = 0.0
        self._lost = 0  # requests in a row that got no answer

    @property
    def gone(self) -> bool:
        """True when the server doesn't answer any more."""
        return self._dead or self._lost >= GONE

    async def closed(self, requests: Sequence[Request], concurrency: int) -> Load:
        """``concurrency`` requests at a time, until all are done."""
        waiting: Iterator[tuple[int, Request]] = iter(enumerate(requests))

        async def worker() -> None:
            for number, request in waiting:
                await self._one(number, request, None)
                if self.gone:
                    return

        self._zero = perf_counter()
        return await self._all([worker() for _ in range(max(1, min(concurrency, len(requests))))])

    async def open(self, requests: Sequence[Request], times: Sequence[float]) -> Load:
        """Each request at its time (seconds from the start, ascending)."""
        self._zero = perf_counter() + SETTLE

        async def later(number: int, request: Request, due: float) -> None:
            wait = self._zero + due - perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            if not self.gone:
                await self._one(number, request, due)

        pairs = zip(requests, times, strict=True)
        return await self._all([later(number, request, due) for number, (request, due) in enumerate(pairs)])

    async def _all(self, jobs: list[Coroutine[Any, Any, None]]) -> Load:
        senders = asyncio.gather(*jobs)
        reader = asyncio.ensure_future(self._read())
        watcher = asyncio.ensure_future(self._watch(senders))
        try:
            await asyncio.wait((senders, reader), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():  # else it failed: a record that can't be written ends the load
                self._unread.put_nowait(None)
            await reader
            await senders
        except asyncio.CancelledError:
            if not self._dead:
                raise
        finally:
            for task in (senders, reader, watcher):
                task.cancel()
            await asyncio.gather(senders, reader, watcher, return_exceptions=True)
            self._pool.close()
            self._read_rest()
        results = sorted(self._results, key=lambda result: result.number)
        seconds = max((one.ended for one in results), default=0.0) - min((one.due for one in results), default=0.0)
        return Load(results, seconds, self.gone)

    async def _read(self) -> None:
        """Reads replies, one between two looks at the sockets: what arrived meanwhile is stamped first."""
        while (item := await self._unread.get()) is not None:
            self._take(*item)
            await asyncio.sleep(0)

    def _read_rest(self) -> None:
        """After an interruption: what had come by then is kept."""
        while not self._unread.empty():
            item = self._unread.get_nowait()
            if item is not None and not self._failed:
                self._take(*item)

    def _take(self, result: Result, parts: list[Part]) -> None:
        if not result.kind:
            _judge(result, parts, self._zero)
        self._results.append(result)
        if self._on_result is not None:
            try:
                self._on_result(result)
            except BaseException:
                self._failed = True
                raise

    async def _watch(self, senders: asyncio.Future[Any]) -> None:
        while self._alive is not None:
            await asyncio.sleep(LOOK_EVERY)
            if not await asyncio.get_running_loop().run_in_executor(None, self._alive):
                self._dead = True
                senders.cancel()
                return

    async def _one(self, number: int, request: Request, due: float | None) -> None:
        began = perf_counter()
        result = Result(number, request, began - self._zero if due is None else due, began - self._zero, 0.0)
        parts: list[Part] = []
        try:
            received = await self._pool.send(request.raw)
        except Broken as error:
            result.kind, result.sentence = error.kind, str(error)
            result.ended = perf_counter() - self._zero
            self._lost = self._lost + 1 if error.kind in ("refused", "closed", "timeout") else 0
        else:
            self._lost = 0
            result.ended = received.ended - self._zero
            result.status = received.status
            parts = received.parts
        self._unread.put_nowait((result, parts))
        while self._unread.qsize() > UNREAD:
            await asyncio.sleep(0.001)


def _judge(result: Result, parts: list[Part], zero: float) -> None:
    if result.status != 200:
        text = b"".join(part for _, part in parts)[:4000]
        result.kind, result.sentence = "status", f"answered with {result.status}: {_error(text)}"
        return
    result.reply = read_stream([(at - zero, part) for at, part in parts])
    if result.reply.fault:
        cut = result.reply.fault.startswith("the stream ended")
        result.kind, result.sentence = ("cut" if cut else "garbage"), result.reply.fault


def _error(text: bytes) -> str:
    import json

    try:
        return error_text(json.loads(text))
    except (ValueError, RecursionError):
        return shown(text.decode(errors="replace")) or "(nothing)"


def run_closed(
    where: Address,
    requests: Sequence[Request],
    concurrency: int,
    *,
    silence: float,
    on_result: OnResult | None = None,
    alive: Alive | None = None,
) -> Load:
    """Closed load, from a program that is not asynchronous itself. KeyboardInterrupt passes through."""

    async def load() -> Load:
        return await Driver(where, silence=silence, on_result=on_result, alive=alive).closed(requests, concurrency)

    return asyncio.run(load())


def run_open(
    where: Address,
    requests: Sequence[Request],
    rate: float,
    *,
    silence: float,
    on_result: OnResult | None = None,
    alive: Alive | None = None,
) -> Load:
    """Open load: ``rate`` requests per second, evenly spaced."""
    times = [number / rate for number in range(len(requests))]

    async def load() -> Load:
        return await Driver(where, silence=silence, on_result=on_result, alive=alive).open(requests, times)

    return asyncio.run(load())
