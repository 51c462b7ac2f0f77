"""What ships as data: matrices for ``bench``, and earlier figures that ``accept`` and ``results`` compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.bench.compare import Table, number, table
from envgen.bench.history import shipped
from envgen.bench.record import load, resolve
from envgen.bench.tools import MODULES, Asked, Plan
from envgen.errors import UsageError
from envgen.text import reason_of

_PLANS = Path(__file__).with_name("plans.yaml")
_LISTS = ("pp", "tg", "depth", "concurrency")


@dataclass(frozen=True)
class Reference:
    """Throughputs of another engine or of an earlier run."""

    name: str
    found: Table

    def figures(self, asked: Asked) -> dict[str, float]:
        """Its prefill and decode t/s for a cell; what it did not measure is left out.

        llama-bench generates from an empty context (``pp0``); that is compared with any prompt at that depth.
        """
        known: dict[str, float] = {}
        for name in ("prefill_tps", "decode_tps"):
            for cell, series in self.found.get(name, {}).items():
                same = cell.context == asked.depth and cell.concurrency == asked.concurrency
                prompt = cell.prompt == asked.pp or (name == "decode_tps" and cell.prompt <= 0)
                output = name == "prefill_tps" or cell.output in (asked.tg, -1)
                if same and prompt and output:
                    known[name] = series.mean
        return known


def reference(text: str, folder: Path) -> Reference:
    """``NAME=T/S`` (decode), the name of shipped figures, or a run in ``folder``. UsageError for anything else."""
    name, equals, speed = text.rpartition("=")
    if equals:
        try:
            value = number(float(speed))
        except ValueError:
            value = None
        if not name or value is None or not 0 < value < 1e9:
            raise UsageError(f"--reference {text}: not NAME=T/S", hint="such as --reference llama.cpp=57.85")
        return Reference(name, table([{"unit": "aggregate", "decode_tps": value}]))
    for one in shipped():
        if one.name == text:
            return Reference(text, table(one.samples))
    try:
        record = load(resolve(folder, text))
    except UsageError as error:
        known = ", ".join(one.name for one in shipped() if one.name)
        raise UsageError(
            f"--reference {text}: neither shipped ({known}) nor a run: {error.problems[0].message}",
            hint="such as --reference llama.cpp, --reference NAME=T/S or --reference latest",
        ) from None
    return Reference(f"{record.title} ({record.id})", table(record.samples))


def plan(name: str, given: Mapping[str, Any]) -> Plan:
    """The plan of that name or file (empty: the default), with what the command line gives instead."""
    found = _read(name) if name else {}
    known = {one.name for one in fields(Plan)}
    if unknown := sorted(set(found) - known):
        raise UsageError(f"plan {name}: unknown key {unknown[0]!r}; it knows {', '.join(sorted(known))}")
    for key, value in found.items():
        _check(name, key, value)
    shipped: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in found.items()}
    return replace(Plan(**shipped), **{key: value for key, value in given.items() if value is not None})


def _read(name: str) -> dict[str, Any]:
    plans = yaml.safe_load(_PLANS.read_text(encoding="utf-8"))
    if name in plans:
        return dict(plans[name])
    if not name.endswith((".yaml", ".yml")):
        raise UsageError(f"no plan {name!r}; there are: {', '.join(plans)}", hint="or the path of a .yaml file")
    try:
        found = yaml.safe_load(files.read(Path(name), limit=1 << 16).decode(errors="replace"))
    except OSError as error:
        raise UsageError(f"plan {name}: {reason_of(error)}", hint="envgen bench --plan seeds") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"plan {name}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(found, dict):
        raise UsageError(f"plan {name}: not a mapping of keys such as pp and depth")
    return {str(key): value for key, value in found.items()}


def _check(name: str, key: str, value: Any) -> None:
    def whole(one: Any, least: int) -> bool:
        return isinstance(one, int) and not isinstance(one, bool) and least <= one <= 10**9

    if key in _LISTS:
        least = 0 if key == "depth" else 1
        good = isinstance(value, list) and bool(value) and all(whole(one, least) for one in value)
    elif key == "runs":
        good = whole(value, 1)
    elif key == "prefix_caching":
        good = isinstance(value, bool)
    else:
        good = isinstance(value, str) and value in MODULES
    if not good:
        raise UsageError(f"plan {name}: `{key}` is wrong: {value!r}", hint="envgen/bench/plans.yaml shows the form")
