"""What smoke, stress, bench and accept share: a server, requests to it, a record of each, criteria with verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from envgen.errors import ServiceError
from envgen.serve.load.generate import Alive, Load, Request, Result, run_closed, run_open
from envgen.serve.prompts import Prompts
from envgen.serve.target import Say, Target
from envgen.serve.vitals import Look, Vitals

PASSED, FAILED, UNKNOWN = "passed", "failed", "not checked"


@dataclass(frozen=True)
class Criterion:
    """One line of a verdict. ``seen`` is what was found, ``wanted`` what it must be, ``note`` what was adapted."""

    name: str
    verdict: str
    seen: str
    wanted: str
    note: str = ""

    def plain(self) -> dict[str, str]:
        """As a mapping for JSON and for the record."""
        return {"name": self.name, "verdict": self.verdict, "seen": self.seen, "wanted": self.wanted, "note": self.note}


def criterion(name: str, good: bool, seen: str, wanted: str, note: str = "") -> Criterion:
    """A criterion that was checked."""
    return Criterion(name, PASSED if good else FAILED, seen, wanted, note)


class Gone(ServiceError):
    """The server went away in the middle."""


@dataclass
class Trial:
    """One run against one server. ``record`` keeps a sample at once; ``look`` is None where no container is known."""

    target: Target
    prompts: Prompts
    record: Callable[[Mapping[str, Any]], None]
    say: Say
    look: Look | None = None
    alive: Alive | None = None
    silence: float = 300.0
    seed: int = 0
    part: str = ""  # of `accept`: which of the three is under way
    sent: int = field(default=0)

    def closed(self, test: str, requests: Sequence[Request], concurrency: int, **cell: Any) -> Load:
        """Closed load, recorded. Gone when the server went away."""
        hear = self._listener(test, len(requests), {"concurrency": concurrency, **cell})
        return self._checked(
            run_closed(self.target.where, requests, concurrency, silence=self.silence, on_result=hear, alive=self.alive)
        )

    def open(self, test: str, requests: Sequence[Request], rate: float, **cell: Any) -> Load:
        """Open load, recorded. Gone when the server went away."""
        hear = self._listener(test, len(requests), {"rate": rate, **cell})
        return self._checked(
            run_open(self.target.where, requests, rate, silence=self.silence, on_result=hear, alive=self.alive)
        )

    def make(self, prompt_tokens: int, output_tokens: int, count: int = 1, *, logprobs: bool = False) -> list[Request]:
        """``count`` requests of that size, no two alike."""
        limit = self.room(output_tokens)
        made = []
        for _ in range(count):
            text, real = self.prompts.of(prompt_tokens, limit)
            made.append(self.target.request(text, output_tokens, prompt_tokens=real, logprobs=logprobs))
        return made

    def room(self, output_tokens: int) -> int | None:
        """The most tokens that a prompt may have beside a completion of that length; None: the server doesn't say."""
        return None if self.target.max_len is None else max(1, self.target.max_len - output_tokens)

    def vitals(self) -> Vitals | None:
        """How the container is; None where none is known."""
        return self.look() if self.look else None

    def _listener(self, test: str, count: int, cell: Mapping[str, Any]) -> Callable[[Result], None]:
        done = 0
        failed = 0

        def hear(result: Result) -> None:
            nonlocal done, failed
            done += 1
            self.sent += 1
            failed += not result.good
            head = {"unit": "request", "test": test, **({"part": self.part} if self.part else {})}
            self.record({**head, **sample(result), **cell})
            step = max(1, count // 10)
            if count >= 20 and (done % step == 0 or done == count):
                self.say(f"  {test}: {done} of {count} requests" + (f", {failed} failed" if failed else ""))

        return hear

    def _checked(self, load: Load) -> Load:
        if load.gone:
            good = sum(result.good for result in load.results)
            bad = [result.sentence for result in load.results if not result.good]
            raise Gone(f"the server stopped answering after {good} good replies: {(bad or ['its program ended'])[-1]}")
        return load


def sample(result: Result) -> dict[str, Any]:
    """One request as it stands in a record; times in milliseconds."""
    told: dict[str, Any] = {"status": result.status, "latency_ms": _ms(result.latency)}
    if result.began != result.due:
        told["late_ms"] = _ms(result.began - result.due)
    if not result.good:
        return {**told, "error": result.sentence, "error_kind": result.kind}
    gaps = result.gaps
    # What was asked for names the cell; where the caller doesn't say, what was seen does.
    told["prompt_tokens"] = told["prompt_tokens_seen"] = result.reply.prompt_tokens
    told["output_tokens"] = result.request.output_tokens or result.output_tokens
    told["output_tokens_seen"] = result.output_tokens
    told["ttft_ms"] = _ms(result.ttft)
    told["itl_ms"] = _ms(fmean(gaps)) if gaps else None
    told["gaps_ms"] = [_ms(gap) for gap in gaps]
    told["prefill_tps"] = _figure(result.prefill_tps)
    told["decode_tps"] = _figure(result.decode_tps)
    if result.reply.cached_tokens:
        told["cached_tokens"] = result.reply.cached_tokens
    return {key: value for key, value in told.items() if value is not None}


def faults(results: Sequence[Result]) -> str:
    """What went wrong, in one line: each kind with its number and the first sentence; empty when nothing did."""
    bad = [result for result in results if not result.good]
    kinds = Counter(result.kind for result in bad)
    first = {kind: next(one.sentence for one in bad if one.kind == kind) for kind in kinds}
    return "; ".join(f"{count}x {first[kind]}" for kind, count in kinds.most_common())


def worst(criteria: Sequence[Criterion]) -> str:
    """``failed`` when one failed, else ``passed``. What was not checked doesn't fail a run; `accept` is stricter."""
    return FAILED if any(one.verdict == FAILED for one in criteria) else PASSED


def gigabytes(size: int) -> str:
    """Bytes as gigabytes (10^9)."""
    return f"{size / 1e9:.2f} GB"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _figure(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
