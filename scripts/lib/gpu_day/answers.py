"""Steps: are the answers the same twice, with other kernels, and with a fault; where the lines
between verdicts lie.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_day.day import Day, Done, Rows, start, step

GOOD = ("same", "close")
# Settings that make a kernel compute something else, as one does that reads them wrong.
FAULTS: dict[str, dict[str, Any]] = {
    "a window of half the size": {"sliding_window": 64},
    "one expert instead of four": {"num_experts_per_tok": 1},
    "another base of RoPE": {
        "rope_parameters": {
            "rope_theta": 10_000.0, "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": False,
        },
    },
}  # fmt: skip


def shown(found: dict[str, Any]) -> str:
    """The rows of `envgen answers` in a line."""
    return "; ".join(
        f"{row['name']}: {row['verdict']}, {row['seen']}" for row in found.get("rows", ())
    )


def asked(
    day: Day, rows: Rows, what: str, wanted: tuple[str, ...], *words: str
) -> tuple[Done, str]:
    """`envgen answers`, as a row; and the id of its record."""
    done = day.envgen("answers", day.service, "--json", *words, timeout=1800)
    word = str(done.document.get("outcome", ""))
    rows.add(
        what,
        word in wanted,
        f"{word}; {shown(done.document) or done.last}",
        " or ".join(wanted),
        done.seconds,
    )
    rows.data[what] = {key: value for key, value in done.document.items() if key != "record"}
    record = Path(str(done.document.get("record", "")))
    return done, str(
        json.loads(record.read_text().splitlines()[0])["id"]
    ) if record.is_file() else ""


@step("answers", "answers: the same twice, alone and in a batch, and with a fault")
def answers(day: Day, rows: Rows) -> None:
    _, reference = asked(day, rows, "alone, in a batch and read", GOOD)
    if not reference:
        return
    asked(day, rows, "the same server twice", GOOD, "--against", reference)
    if start(day, rows, "a new start", "--recreate"):
        asked(day, rows, "the same server, started again", GOOD, "--against", reference)
    if day.foreign or day.options.repo:
        return  # a fault costs a start of the whole model
    for name, override in FAULTS.items():
        words = f"services.{day.service}.args.hf-overrides={json.dumps(override)}"
        if start(day, rows, f"start with {name}", "--recreate", "--set", words):
            asked(day, rows, name, ("different", "broken"), "--against", reference)
    start(day, rows, "as before", "--recreate")


@step("sweep", "answers and speed of each backend that fits")
def sweep(day: Day, rows: Rows) -> None:
    words = (
        "--variants",
        day.options.sweep,
        "--yes",
        "--json",
        "--fresh",
        *day.options.bench.split(),
    )
    done = day.envgen("sweep", day.service, *words, timeout=3600)
    for row in done.document.get("rows", ()):
        figures = ", ".join(f"{label} {value:.1f}" for label, value in row["figures"].items())
        seen = "; ".join(
            filter(None, (row["verdict"], figures, " ".join(row["kernels"]), row["cause"]))
        )
        rows.add(
            row["variant"],
            not row["cause"] and row["verdict"] in GOOD,
            seen,
            "same or close",
            row["seconds"] or 0,
        )
    if not done.document.get("rows"):
        rows.add("envgen sweep", False, done.last, "a table", done.seconds)
    rows.data["sweep"] = done.document
