"""Kernels against torch, asked in a running container (``inside/kernels.py``)."""

from __future__ import annotations

from typing import Any

from envgen.bench.checks import FAILED, PASSED, UNKNOWN, Criterion
from envgen.engine.base import MISSHAPEN
from envgen.errors import ServiceError
from envgen.inside import run

PROGRAM = run.Program(("kernels",), flags=("-X", "faulthandler"))
TITLES = {"attention": "attention with sinks", "moe": "fused MoE"}
TOKENS = (4, 16, 64, 128, 256, 320)  # the lab notes' sizes
SECONDS = 600.0  # for one kind: FlashInfer compiles two modules for attention


def compare(execute: run.Execute, python: str, kernel: str) -> tuple[list[dict[str, Any]], list[Criterion]]:
    """The rows of one kind of kernels, and a verdict on each kernel that could not run."""
    title, wanted = TITLES[kernel], "torch's result"
    request = {"kernel": kernel, "tokens": TOKENS, "seconds": SECONDS * 0.9}
    found = run.ask(execute, python, PROGRAM, request, timeout=SECONDS)
    if isinstance(found, run.Failure):
        return [], [Criterion(title, FAILED, "; ".join([str(found), *found.stack[-1:]]), wanted)]
    try:
        rows = [{**row, "kernel": title, "right": row["right"] is True} for row in found["rows"]]
        left = [Criterion(f"{title}, {one['by']}".rstrip(", "), FAILED if one["failed"] else UNKNOWN, str(one["why"]),
                          wanted) for one in found["not_run"]]  # fmt: skip
    except MISSHAPEN as error:
        raise ServiceError(f"the container's answer has another form: {type(error).__name__}: {error}") from None
    return rows, left


def outcome(rows: list[dict[str, Any]], left: list[Criterion]) -> str:
    """``passed`` only where something was compared and nothing is wrong."""
    if not all(row["right"] for row in rows) or any(one.verdict == FAILED for one in left):
        return FAILED
    return PASSED if rows else UNKNOWN
