"""Kernels against torch, asked in a running container (``inside/kernels.py``): what each found, as criteria."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envgen.bench.checks import UNKNOWN, Criterion, criterion
from envgen.engine.base import MISSHAPEN
from envgen.errors import ServiceError
from envgen.inside import run

PROGRAM = run.Program(("kernels",), flags=("-X", "faulthandler"))
TITLES = {"attention": "attention with sinks", "moe": "fused MoE"}
TOKENS = (4, 16, 64, 128, 256, 320)  # the lab notes' sizes
SECONDS = 600.0  # for one kind: FlashInfer compiles two modules for attention


Found = tuple[list[dict[str, Any]], list[Criterion], list[Criterion]]


def compare(execute: run.Execute, python: str, kernel: str) -> Found:
    """The rows of one kind of kernels, a verdict on each row, and one on each kernel that could not run."""
    request = {"kernel": kernel, "tokens": TOKENS, "seconds": SECONDS * 0.9}
    found = run.ask(execute, python, PROGRAM, request, timeout=SECONDS)
    if isinstance(found, run.Failure):
        last = found.stack[-1] if found.stack else ""
        return [], [], [criterion(TITLES[kernel], False, f"{found}; {last}".rstrip("; "), "an answer")]
    try:
        rows = [{"kernel": TITLES[kernel], **row} for row in found["rows"]]
        return rows, list(map(_judged, rows)), [_left(TITLES[kernel], one) for one in found["not_run"]]
    except MISSHAPEN as error:
        raise ServiceError(f"the container's answer has another form: {type(error).__name__}: {error}") from None


def _judged(row: Mapping[str, Any]) -> Criterion:
    error = "NaN or infinity" if row["error"] is None else f"off by {float(row['error']):.2%} of the largest value"
    name = f"{row['kernel']}, {row['by']}, {row['shape']}"
    return criterion(name, row["right"] is True, error, f"at most {float(row['tolerance']):.0%}")


def _left(title: str, one: Mapping[str, Any]) -> Criterion:
    name, wanted = f"{title}, {one['by']}".rstrip(", "), "torch's result"
    if one["failed"]:
        return criterion(name, False, str(one["why"]), wanted)
    return Criterion(name, UNKNOWN, str(one["why"]), wanted)


def outcome(criteria: list[Criterion]) -> str:
    """``passed`` only where something was compared and nothing is wrong."""
    verdicts = {one.verdict for one in criteria}
    return next((one for one in ("failed", "passed") if one in verdicts), UNKNOWN)
