"""`envgen stress`: many requests, several at a time, and nothing may break or pile up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envgen.serve.figures import rounded_percentile
from envgen.serve.load.generate import Load
from envgen.serve.trial import UNKNOWN, Criterion, Trial, criterion, faults, gigabytes
from envgen.serve.vitals import Vitals

GROWTH = 5_000_000_000
_NO_CONTAINER = "no container is known: name it with --container"


@dataclass(frozen=True)
class StressPlan:
    """``rate`` (requests per second) makes the load open; else it is closed, ``concurrency`` at a time."""

    requests: int = 200
    concurrency: int = 8
    rate: float | None = None
    prompt_tokens: int = 64
    output_tokens: int = 32


def stress(trial: Trial, plan: StressPlan) -> tuple[list[Criterion], dict[str, Any]]:
    """Run it. Returns the criteria and a summary of what was measured. Gone when the server goes away."""
    before = trial.vitals()
    requests = trial.make(plan.prompt_tokens, plan.output_tokens, plan.requests)
    cell = {"prompt_tokens": plan.prompt_tokens, "output_tokens": plan.output_tokens}
    if plan.rate is not None:
        load = trial.open("stress", requests, plan.rate, **cell)
    else:
        load = trial.closed("stress", requests, plan.concurrency, **cell)
    after = trial.vitals()
    return _judge(load, before, after), _summary(load)


def _judge(load: Load, before: Vitals | None, after: Vitals | None) -> list[Criterion]:
    bad = [one for one in load.results if not one.good]
    errors = [one for one in bad if one.status >= 500]
    count = len(load.results)
    found = [
        criterion("requests", not bad, f"{len(bad)} of {count} failed" + _why(faults(load.results)), "0 failed"),
        criterion("5xx answers", not errors, f"{len(errors)}", "0"),
    ]
    if before is None or after is None:
        found += [
            Criterion("zombie processes", UNKNOWN, _NO_CONTAINER, "0"),
            Criterion("memory growth", UNKNOWN, _NO_CONTAINER, f"less than {gigabytes(GROWTH)}"),
        ]
        return found
    zombies = ", ".join(after.zombies)
    growth = after.growth(before)
    known = "" if after.gpu_memory is not None else "without the GPU's memory: nvidia-smi doesn't tell it"
    return [
        *found,
        criterion("restarts", not after.restarted(before), "yes" if after.restarted(before) else "none", "none"),
        criterion("zombie processes", not after.zombies, f"{len(after.zombies)}" + _why(zombies), "0"),
        criterion("memory growth", growth < GROWTH, gigabytes(growth), f"less than {gigabytes(GROWTH)}", known),
    ]


def _why(text: str) -> str:
    return f": {text}" if text else ""


def _summary(load: Load) -> dict[str, Any]:
    good = [one for one in load.results if one.good]
    seconds = load.seconds or 1e-9
    latencies = [one.latency * 1000 for one in good]
    firsts = [one.ttft * 1000 for one in good if one.ttft is not None]
    return {
        "requests": len(load.results),
        "failed": len(load.results) - len(good),
        "seconds": round(load.seconds, 3),
        "requests_per_s": round(len(good) / seconds, 3),
        "total_tps": round(sum(one.output_tokens for one in good) / seconds, 3),
        "latency_ms": {name: rounded_percentile(latencies, q) for name, q in (("p50", 50), ("p90", 90), ("p99", 99))},
        "ttft_ms": {name: rounded_percentile(firsts, q) for name, q in (("p50", 50), ("p90", 90), ("p99", 99))},
        "generator_late_ms": round(load.lag * 1000, 3),
    }
