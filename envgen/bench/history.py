"""Runs that others measured, as envgen keeps them, and those that ship with it (history.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import yaml

from envgen.bench.compare import number
from envgen.errors import Place, ResultsError

HISTORY = Path(__file__).with_name("history.yaml")
TEST = re.compile(r"(pp|tg)\s*=?\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?(?:\s*\(c(\d{1,6})\))?")


@dataclass
class Foreign:
    """One run as its file has it. ``started`` is None where no date is given."""

    label: str
    started: datetime | None
    environment: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""
    line: int = 0


@dataclass(frozen=True)
class LeftOut:
    """A line with figures that was not imported, and why."""

    line: int
    text: str
    why: str


def stop(path: Path, message: str, hint: str = "", key: str = "", line: int = 0) -> NoReturn:
    """Raise ResultsError for a place in a file that is imported."""
    raise ResultsError(message, hint=hint, place=Place(str(path), line, 1 if line else 0, key))


def moment(value: Any) -> datetime | None:
    """A date or time as UTC, or None. What names no zone is read as UTC."""
    if isinstance(value, str):
        text = value.strip().replace(" ", "T", 1)
        try:
            value = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return None
    try:
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
    except OverflowError:
        return None


def figure(text: Any) -> float | None:
    """A number as people write it: ``4,573``, ``~555``, ``52.4 ms``; None for whatever else is there."""
    shape = r"[~≈]?\s*(-?\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?)\s*(?:ms|tok/s|t/s|tokens/s)?"
    found = re.fullmatch(shape, str(text).strip())
    return number(float(found[1].replace(",", ""))) if found else None


def test_sample(
    name: str, figures: Mapping[str, tuple[float | None, float | None]], before: list[dict[str, Any]],
    prompt: int | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """One row such as ``pp2048 @ d4096 (c2)``. ``figures``: our name ("": the throughput) -> mean, deviation.

    A ``tg`` row has the prompt of the last ``pp`` row of the same depth in ``before``, unless ``prompt`` names it.
    """
    test = TEST.fullmatch(name.strip())
    found = {key or ("decode_tps" if test and test[1] == "tg" else "prefill_tps"): pair
             for key, pair in figures.items() if pair[0] is not None}  # fmt: skip
    if not test or not found:
        return None
    cell = {"context_tokens": int(test[3] or 0), "concurrency": int(test[4] or 1)}
    if test[1] == "pp":
        cell["prompt_tokens"] = int(test[2])
    else:
        cell["output_tokens"] = int(test[2])
        same = ("context_tokens", "concurrency")
        last = [
            one["prompt_tokens"]
            for one in before
            if "prefill_tps" in one and all(one[key] == cell[key] for key in same)
        ]
        if prompt is not None or last:
            cell["prompt_tokens"] = last[-1] if prompt is None else prompt
    spread = {key: sd for key, (_, sd) in found.items() if sd is not None}
    return {"unit": "aggregate", **cell, **{key: mean for key, (mean, _) in found.items()}, "spread": spread}


def shipped() -> list[Foreign]:
    """The runs of history.yaml, which ships with envgen; a figure there is a mean, or a mean and its deviation."""
    document = yaml.safe_load(HISTORY.read_text(encoding="utf-8"))
    runs = []
    for run in document["runs"]:
        environment = {**document["environment"], **run.get("environment", {}),
                       "imported": {"source": document["source"]}}  # fmt: skip
        samples = [
            {"unit": "aggregate", **{key: value[0] if isinstance(value, list) else value for key, value in one.items()},
             "spread": {key: value[1] for key, value in one.items() if isinstance(value, list)}}
            for one in run["figures"]
        ]  # fmt: skip
        parameters, name = run.get("parameters", {}), run.get("name", "")
        runs.append(Foreign(run["label"], moment(run["date"]), environment, parameters, samples, name))
    return runs
