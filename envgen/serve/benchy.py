"""`envgen bench --tool llama-benchy`: that tool, run in the service's container, and its results read."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envgen.engine.base import MISSHAPEN, Engine
from envgen.errors import ServiceError, UsageError
from envgen.serve.bench import BenchPlan, Cell
from envgen.serve.figures import Figure, figure
from envgen.serve.prompts import WORDS

PATIENCE = 4 * 3600.0  # seconds for the whole run
# Its names of what is measured, and ours.
METRICS = {
    "pp_throughput": "prefill_tps",
    "tg_throughput": "decode_tps",
    "ttfr": "ttfr_ms",
    "e2e_ttft": "ttft_ms",
}


def benchy(
    engine: Engine,
    container_id: str,
    *,
    port: int,
    model: str,
    tokenizer: str,
    plan: BenchPlan,
    seed: int,
    record: Callable[[Mapping[str, Any]], None],
) -> tuple[list[Cell], dict[str, Any]]:
    """Run llama-benchy in the container against the server on ``port`` there, and record each of its runs.

    ``tokenizer``: the model's folder in the container. Returns the cells and what the tool says of itself. UsageError
    when it is not installed there, ServiceError when it fails or its results can't be read.
    """
    asked = {
        "base_url": f"http://127.0.0.1:{port}/v1",
        "model": model,
        "tokenizer": tokenizer,
        "pp": plan.prompt_tokens,
        "tg": plan.output_tokens,
        "concurrency": plan.concurrency,
        "runs": plan.repeats,
        "latency_mode": "generation",
        "book": book(seed, max(plan.prompt_tokens)),
    }
    script = (Path(__file__).parent / "benchy_inside.py").read_text(encoding="utf-8")
    done = engine.exec(container_id, ["python3", "-c", script], stdin=json.dumps(asked).encode(), timeout=PATIENCE)
    try:
        said = done.document()
        if not isinstance(said, dict):
            raise ValueError("it is not an object")
    except ValueError:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ServiceError(f"llama-benchy could not be run in the container: {' '.join(tail)}") from None
    if said.get("missing"):
        raise UsageError(
            "llama-benchy is not in the image of the service",
            hint="add `llama-benchy` to pip.tools of the profile and build again",
        )
    if "failed" in said:
        failed = said["failed"] if isinstance(said["failed"], dict) else {}
        raise ServiceError(f"llama-benchy ended with {failed.get('code')}:\n{_lines(failed)}")
    cells, told = read_report(said.get("report"))
    for cell in cells:
        for sample in samples(cell):
            record(sample)
    if not cells or not all(cell.figures for cell in cells):
        raise ServiceError(f"llama-benchy measured nothing; its last lines:\n{_lines(said)}")
    return cells, told


def _lines(said: Mapping[str, Any]) -> str:
    lines = said.get("lines")
    return "\n".join(f"    {line}" for line in lines) if isinstance(lines, list) else ""


def book(seed: int, tokens: int) -> str:
    """A text to cut prompts from: long enough for any of them, and another one for each seed."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(max(20_000, 4 * tokens)))


def read_report(report: Any) -> tuple[list[Cell], dict[str, Any]]:
    """The cells of llama-benchy's JSON, and what it says of itself. ServiceError when it has another form."""
    try:
        cells = [_cell(one) for one in report["benchmarks"] if not one.get("is_context_prefill_phase")]
        told = {key: report[key] for key in ("version", "latency_mode", "latency_ms") if key in report}
    except MISSHAPEN as error:
        raise ServiceError(f"llama-benchy's results can't be read: {type(error).__name__}: {error}") from None
    return cells, told


def _cell(run: Mapping[str, Any]) -> Cell:
    figures: dict[str, Figure] = {}
    for theirs, ours in METRICS.items():
        metric = run.get(theirs)
        values = [float(value) for value in metric["values"]] if metric else []
        found = figure([value for value in values if math.isfinite(value)])
        if found is not None:
            figures[ours] = found
    return Cell(
        int(run["prompt_size"]), int(run["response_size"]), int(run["concurrency"]), figures,
        int(run["prompt_size"]), int(run["response_size"]), (), 0, "", 0.0,
    )  # fmt: skip


def samples(cell: Cell) -> list[dict[str, Any]]:
    """One sample a repeat, with the values that llama-benchy kept of it."""
    count = max((len(found.values) for found in cell.figures.values()), default=0)
    head = {
        "unit": "repeat", "tool": "llama-benchy", "test": f"pp{cell.prompt_tokens} tg{cell.output_tokens}",
        "prompt_tokens": cell.prompt_tokens, "output_tokens": cell.output_tokens, "concurrency": cell.concurrency,
    }  # fmt: skip
    return [
        {**head, "repeat": number, **{
            name: round(found.values[number], 3) for name, found in cell.figures.items() if number < len(found.values)
        }}
        for number in range(count)
    ]  # fmt: skip
