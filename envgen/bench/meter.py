"""What a load did beside its tokens: drafts that were accepted, and what the GPUs drew and held."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from envgen.engine.box import LIMITS

IDLE = 0x1
_DRAFTS = re.compile(
    r"vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total(?:\{.*\})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
)


def of_drafts(before: Sequence[str], after: Iterable[str]) -> dict[str, float]:
    """The share of draft tokens that were accepted, in percent, and tokens a step with its own
    one, from vLLM's counters. Empty where none were drafted.
    """
    done = defaultdict[str, float](float)
    for sign, lines in ((-1, before), (1, after)):
        for match in filter(None, map(_DRAFTS.fullmatch, lines)):
            done[match[1]] += sign * float(match[2])
    accepted = done["accepted_tokens"]
    # Not where counters began anew, or could not be read before.
    if not before or done["drafts"] <= 0 or not 0 <= accepted <= done["draft_tokens"] < 1e300:
        return {}
    return {
        "accepted_percent": 100 * accepted / done["draft_tokens"],
        "step_tokens": 1 + accepted / done["drafts"],
    }


def of_gpus(lines: Iterable[str]) -> dict[str, float]:
    """Watts and the highest memory in MiB of all GPUs together while they worked, and the percent
    of the seconds for each reason for which clocks fell. Empty where nothing tells it.
    """
    watts = defaultdict[str, list[float]](list)
    memory = dict[str, float]()
    reasons = Counter[str]()
    working = 0
    for line in lines:
        index, *values = line.replace("[N/A]", "0").split(",")
        try:
            power = float(values[0])
            used = float(values[1])
            active = int(values[2], 16)
        except (ValueError, IndexError):
            continue
        memory[index] = max(memory.get(index, 0.0), used)
        if not active & IDLE:
            working += 1
            reasons.update(name for bit, name in LIMITS.items() if active & bit)
            watts[index].append(power)
    found = {f"slowed: {name}": 100 * count / working for name, count in reasons.items()}
    found["watts"] = sum(map(statistics.fmean, watts.values()))
    found["memory_mib"] = sum(memory.values())
    return {name: value for name, value in found.items() if value}


def lines_of(figures: Mapping[str, float], rate: float | None) -> Iterator[str]:
    """The figures as a person reads them. ``rate``: tokens a second."""
    if "step_tokens" in figures:
        text = "drafts: {accepted_percent:.1f} % of their tokens accepted, {step_tokens:.2f} tokens a step"
        yield text.format_map(figures)
    if watts := figures.get("watts"):
        each = f", {rate / watts:.2f} tokens/s a watt" if rate else ""
        yield f"power: {watts:,.0f} W{each}"
    if "memory_mib" in figures:
        yield f"GPU memory: {figures['memory_mib'] / 1024:,.1f} GiB at its highest"
    for name, percent in figures.items():
        if name.startswith("slowed: "):
            yield f"clocks were lowered in {percent:.0f} % of the seconds: {name[8:]}"
