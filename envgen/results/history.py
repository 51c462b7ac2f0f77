"""History files: figures of earlier runs as YAML, written by hand. docs/results.md has an example."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from envgen.results.figures import number
from envgen.results.foreign import dated, moment, stop
from envgen.results.imported import Foreign
from envgen.results.model import METRICS

FORMAT = 1
_LENGTHS = {
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    "context": "context_tokens",
    "concurrency": "concurrency",
    "runs": "runs",
}
_KEYS = {"label", "date", "environment", "parameters", "figures"}


class _Loader(yaml.SafeLoader):
    """Safe, and without aliases: a few of them can name more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not read", mark)
        return super().compose_node(parent, index)


def read_history(path: Path, text: str, when: datetime | None, _label: str) -> list[Foreign]:
    """The runs of a history file. Raises ResultsError with the key of what is wrong."""
    try:
        document = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        stop(path, f"this is no YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else 0)
    if not isinstance(document, dict) or document.get("history") != FORMAT:
        stop(path, f"this is no history file: its first key is `history: {FORMAT}`")
    runs = document.get("runs")
    if not isinstance(runs, list):
        stop(path, "must be a list of runs", key="runs")
    common = _mapping(path, document.get("environment"), "environment")
    source = document.get("source")
    if not isinstance(source, str) or not source:
        stop(path, "must say where the figures come from", key="source")
    return [_run(path, f"runs[{index}]", run, {"source": source, **common}, when) for index, run in enumerate(runs)]


def _mapping(path: Path, value: Any, key: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        stop(path, "must be a mapping", key=key)
    return {str(name): item for name, item in value.items()}


def _run(path: Path, key: str, run: Any, common: Mapping[str, Any], when: datetime | None) -> Foreign:
    members = _mapping(path, run, key)
    if unknown := sorted(set(members) - _KEYS):
        stop(path, f"unknown key {unknown[0]!r}; it knows {', '.join(sorted(_KEYS))}", key=key)
    label = members.get("label")
    if not isinstance(label, str) or not label:
        stop(path, "must be a text", key=f"{key}.label")
    figures = members.get("figures")
    if not isinstance(figures, list) or not figures:
        stop(path, "must be a list of figures", key=f"{key}.figures")
    if "date" in members and moment(members["date"]) is None:
        stop(path, "must be a date such as 2026-01-09", key=f"{key}.date")
    return Foreign(
        label,
        dated(path, moment(members.get("date")), when),
        {**common, **_mapping(path, members.get("environment"), f"{key}.environment")},
        _mapping(path, members.get("parameters"), f"{key}.parameters"),
        [_sample(path, f"{key}.figures[{index}]", figure) for index, figure in enumerate(figures)],
    )


def _sample(path: Path, key: str, figure: Any) -> dict[str, Any]:
    sample: dict[str, Any] = {"unit": "aggregate"}
    spread: dict[str, float] = {}
    for name, value in _mapping(path, figure, key).items():
        if name in _LENGTHS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                stop(path, "must be a whole number", key=f"{key}.{name}")
            sample[_LENGTHS[name]] = value
        elif name in METRICS:
            pair = value if isinstance(value, list) else [value]
            numbers = [number(item) for item in pair]
            if not 1 <= len(numbers) <= 2 or None in numbers:
                stop(path, "must be a number, or [mean, standard deviation]", key=f"{key}.{name}")
            sample[name] = numbers[0]
            if len(numbers) == 2 and numbers[1] is not None:
                spread[name] = numbers[1]
        else:
            known = ", ".join([*_LENGTHS, *METRICS])
            stop(path, f"unknown key {name!r}; it knows {known}", key=key)
    if not set(sample) & set(METRICS):
        stop(path, "holds no figure", key=key)
    return {**sample, "spread": spread}
