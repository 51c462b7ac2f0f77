"""Runs that others measured, as envgen keeps them, and history files: such runs as YAML, written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import yaml

from envgen.bench.compare import number
from envgen.bench.record import METRICS
from envgen.errors import Place, ResultsError

HISTORY = Path(__file__).with_name("history.yaml")
TEST = re.compile(r"(pp|tg)\s*=?\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?(?:\s*\(c(\d{1,6})\))?")
_LENGTHS = {"prompt": "prompt_tokens", "output": "output_tokens", "context": "context_tokens",
            "concurrency": "concurrency", "runs": "runs"}  # fmt: skip
_KEYS = {"label", "name", "date", "environment", "parameters", "figures"}


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


class _Loader(yaml.SafeLoader):
    """Safe, and without aliases: a few of them can name more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not read", mark)
        return super().compose_node(parent, index)


def load_yaml(path: Path, text: str) -> Any:
    """A YAML document. ResultsError with its line for what is not one."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        stop(path, f"this is not YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else 0)


def history_runs(path: Path, text: str, when: datetime | None) -> list[Foreign]:
    """The runs of a history file; ``history.yaml`` beside this module is one."""
    document = load_yaml(path, text)
    if not isinstance(document, dict) or document.get("history") != 1:
        stop(path, "this is not a history file: its first key is `history: 1`")
    runs, source = document.get("runs"), document.get("source")
    if not isinstance(runs, list):
        stop(path, "must be a list of runs", key="runs")
    if not isinstance(source, str) or not source:
        stop(path, "must say where the figures come from", key="source")
    common = _mapping(path, document.get("environment"), "environment")
    return [_run(path, f"runs[{index}]", run, common, source, when) for index, run in enumerate(runs)]


def _mapping(path: Path, value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, (dict, type(None))):
        stop(path, "must be a mapping", key=key)
    return {str(name): item for name, item in (value or {}).items()}


def _run(path: Path, key: str, run: Any, common: Mapping[str, Any], source: str, when: datetime | None) -> Foreign:
    members = _mapping(path, run, key)
    if unknown := sorted(set(members) - _KEYS):
        stop(path, f"unknown key {unknown[0]!r}; it knows {', '.join(sorted(_KEYS))}", key=key)
    label, figures = members.get("label"), members.get("figures")
    if not isinstance(label, str) or not label:
        stop(path, "must be a text", key=f"{key}.label")
    if not isinstance(figures, list) or not figures:
        stop(path, "must be a list of figures", key=f"{key}.figures")
    started = moment(members.get("date"))
    if "date" in members and started is None:
        stop(path, "must be a date such as 2026-01-09", key=f"{key}.date")
    environment = {**common, **_mapping(path, members.get("environment"), f"{key}.environment")}
    environment["imported"] = {"source": source}
    samples = [_figures(path, f"{key}.figures[{index}]", one) for index, one in enumerate(figures)]
    parameters = _mapping(path, members.get("parameters"), f"{key}.parameters")
    return Foreign(label, started or when, environment, parameters, samples, str(members.get("name") or ""))


def _figures(path: Path, key: str, value: Any) -> dict[str, Any]:
    sample: dict[str, Any] = {"unit": "aggregate"}
    spread: dict[str, float] = {}
    for name, item in _mapping(path, value, key).items():
        if name in _LENGTHS:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                stop(path, "must be a whole number", key=f"{key}.{name}")
            sample[_LENGTHS[name]] = item
        elif name in METRICS:
            numbers = [number(one) for one in (item if isinstance(item, list) else [item])]
            if not 1 <= len(numbers) <= 2 or None in numbers:
                stop(path, "must be a number, or [mean, standard deviation]", key=f"{key}.{name}")
            sample[name] = numbers[0]
            if len(numbers) == 2:
                spread[name] = float(numbers[1] or 0)
        else:
            stop(path, f"unknown key {name!r}; it knows {', '.join([*_LENGTHS, *METRICS])}", key=key)
    if not set(sample) & set(METRICS):
        stop(path, "holds no figure", key=key)
    return {**sample, "spread": spread}
