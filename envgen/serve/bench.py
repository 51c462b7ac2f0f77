"""`envgen bench`: throughput of prefill and decode, time to first token, and the time between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from envgen.errors import UsageError
from envgen.serve.figures import Figure, figure, rounded_percentile
from envgen.serve.load.generate import Load, Result
from envgen.serve.trial import Trial, faults

NAMES = ("prefill_tps", "decode_tps", "total_tps", "requests_per_s", "ttft_ms", "itl_ms", "latency_ms")


@dataclass(frozen=True)
class BenchPlan:
    """Every prompt length with every output length. ``rate``: open load of ``requests`` a repeat, else closed."""

    prompt_tokens: tuple[int, ...] = (512, 2048)
    output_tokens: tuple[int, ...] = (32, 128)
    concurrency: tuple[int, ...] = (1,)
    repeats: int = 5
    warmup: int = 1
    rate: float | None = None
    requests: int | None = None  # of one repeat; unset: as many as are under way at a time


@dataclass(frozen=True)
class Cell:
    """What was measured for one combination. ``gaps``: all times between pieces, in milliseconds."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int
    figures: dict[str, Figure]
    prompt_tokens_seen: int
    output_tokens_seen: int
    gaps: tuple[float, ...]
    failed: int
    fault: str
    late_ms: float

    def plain(self) -> dict[str, Any]:
        """As a mapping for JSON and for the record."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "concurrency": self.concurrency,
            "prompt_tokens_seen": self.prompt_tokens_seen,
            "output_tokens_seen": self.output_tokens_seen,
            "failed": self.failed,
            **({"fault": self.fault} if self.fault else {}),
            "generator_late_ms": round(self.late_ms, 3),
            "itl_p50_ms": rounded_percentile(self.gaps, 50),
            "itl_p99_ms": rounded_percentile(self.gaps, 99),
            **{name: found.plain() for name, found in self.figures.items()},
        }


def bench(trial: Trial, plan: BenchPlan) -> list[Cell]:
    """Measure every cell that fits the server's length. UsageError when none does; Gone when the server goes away."""
    sizes = [(prompt, output) for prompt in plan.prompt_tokens for output in plan.output_tokens]
    limit = trial.target.max_len
    fitting = [(prompt, output) for prompt, output in sizes if limit is None or prompt + output <= limit]
    for prompt, output in sizes:
        if (prompt, output) not in fitting:
            trial.say(f"  left out: {prompt} + {output} tokens; the server takes {limit} in all")
    if not fitting:
        raise UsageError(
            f"none of the lengths fits: the server takes {limit} tokens in all",
            hint=f"for example --prompt-tokens {max(1, (limit or 2) // 2)} --output-tokens {max(1, (limit or 2) // 8)}",
        )
    cells = []
    for prompt, output in fitting:
        for concurrency in plan.concurrency:
            cells.append(_cell(trial, plan, prompt, output, concurrency))
            trial.say(f"  {_told(cells[-1])}")
    return cells


def _cell(trial: Trial, plan: BenchPlan, prompt: int, output: int, concurrency: int) -> Cell:
    name = f"pp{prompt} tg{output}"
    cell = {"prompt_tokens": prompt, "output_tokens": output}
    count = plan.requests or concurrency
    repeats: list[dict[str, float | None]] = []
    results: list[Result] = []
    late = 0.0
    for number in range(-plan.warmup, plan.repeats):
        requests = trial.make(prompt, output, count)
        extra: dict[str, Any] = {**cell, "repeat": number} if number >= 0 else {**cell, "warmup": True}
        if plan.rate is not None:
            load = trial.open(name, requests, plan.rate, **extra)
        else:
            load = trial.closed(name, requests, concurrency, **extra)
        if number < 0:
            continue
        late = max(late, load.lag * 1000)
        results += load.results
        found = measured(load)
        if found:
            repeats.append(found)
            told = {key: round(value, 3) for key, value in found.items() if value is not None}
            trial.record(
                {"unit": "repeat", "test": name, "part": trial.part, "concurrency": concurrency, **extra, **told}
            )
    return _made(prompt, output, concurrency, repeats, results, late)


def _made(
    prompt: int, output: int, concurrency: int, repeats: Sequence[dict[str, float | None]], results: Sequence[Result],
    late: float,
) -> Cell:  # fmt: skip
    good = [one for one in results if one.good]
    figures = {name: found for name in NAMES if (found := figure([one[name] for one in repeats])) is not None}
    return Cell(
        prompt,
        output,
        concurrency,
        figures,
        round(fmean(one.reply.prompt_tokens or 0 for one in good)) if good else 0,
        round(fmean(one.output_tokens for one in good)) if good else 0,
        tuple(gap * 1000 for one in good for gap in one.gaps),
        len(results) - len(good),
        faults(results),
        late,
    )


def measured(load: Load) -> dict[str, float | None]:
    """The figures of one repeat: of its one request, or of all of them together. Empty when one failed."""
    results = load.results
    if not results or not all(one.good and one.reply.pieces_at for one in results):
        return {}
    began = min(one.due for one in results)
    first = min(one.reply.pieces_at[0] for one in results)
    last_first = max(one.reply.pieces_at[0] for one in results)
    last = max(one.reply.pieces_at[-1] for one in results)
    prompts = sum(one.reply.prompt_tokens or 0 for one in results)
    outputs = sum(one.output_tokens for one in results)
    gaps = [gap for one in results for gap in one.gaps]
    return {
        "prefill_tps": _ratio(prompts, last_first - began),
        "decode_tps": _ratio(sum(one.tokens_after_first for one in results), last - first),
        "total_tps": _ratio(outputs, load.seconds),
        "requests_per_s": _ratio(len(results), load.seconds),
        "ttft_ms": fmean(one.ttft or 0.0 for one in results) * 1000,
        "itl_ms": fmean(gaps) * 1000 if gaps else None,
        "latency_ms": fmean(one.latency for one in results) * 1000,
    }


def _ratio(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount > 0 and seconds > 0 else None


def _told(cell: Cell) -> str:
    name = f"pp{cell.prompt_tokens} tg{cell.output_tokens}" + (f" x{cell.concurrency}" if cell.concurrency > 1 else "")
    if cell.fault:
        return f"{name}: {cell.failed} failed: {cell.fault}"
    prefill, decode = cell.figures.get("prefill_tps"), cell.figures.get("decode_tps")
    return f"{name}: prefill {prefill or '-'} t/s, decode {decode or '-'} t/s"
