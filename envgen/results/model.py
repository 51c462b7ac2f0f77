"""What a run record holds: one run of `smoke`, `stress`, `bench` or `accept`, with all that it measured and where.

The words that writers and readers share:

* A run's ``environment`` says what was measured: ``project``, ``profile``, ``variant``, ``service``, ``url``,
  ``lock`` (its digest), ``image`` (``name``, ``id``, ``digest``), ``sources`` (name -> git SHA), ``versions``
  (package -> version), ``gpu`` (``name``, ``driver``, ...), ``env`` (the service's variables), ``flags`` (the server's
  arguments, a list) and ``host``. All are optional, and others may stand beside them.
* A run's ``parameters`` say how it was measured: what was asked for on the command line.
* A run's ``summary``: texts and numbers, the most telling first (``figures.headline`` makes them from samples);
  ``criteria``, a list of ``name``, ``wanted``, ``seen`` and ``verdict``; ``cells``, a list of lengths and figures.
* A sample that measured throughput or latency names its cell by ``prompt_tokens`` and ``output_tokens``, and where they
  are not 0 and 1 by ``context_tokens`` (tokens that were in the context before) and ``concurrency``; and its figures by
  the names in ``METRICS``. ``unit`` is ``repeat`` (one repetition of the cell: what statistics count) or ``request``
  (one request of it: what latency distributions are drawn from), or ``aggregate``: a mean that somebody else made,
  with ``spread`` (figure -> standard deviation) and ``runs`` where they are known. ``warmup: true`` and ``error: TEXT``
  take a sample out of the figures. ``gaps_ms`` lists every gap between the tokens of a request. Whatever else a sample
  holds is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

# The format of the files. A reader refuses a higher number; a change of meaning raises it.
FORMAT = 1

RUNNING = "running"  # no end line yet, and the writer still holds the file
INTERRUPTED = "interrupted"  # no end line, and nobody holds the file


@dataclass(frozen=True)
class Metric:
    """A figure that can be compared. ``by_output`` = it depends on the answer's length, not on the prompt alone."""

    name: str
    unit: str
    label: str
    more_is_better: bool
    by_output: bool


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("prefill_tps", "t/s", "prefill", True, False),
            Metric("decode_tps", "t/s", "decode", True, True),
            Metric("total_tps", "t/s", "all tokens", True, True),
            Metric("requests_per_s", "1/s", "requests", True, True),
            Metric("ttft_ms", "ms", "time to first token", False, False),
            Metric("ttfr_ms", "ms", "time to first response", False, False),
            Metric("itl_ms", "ms", "between tokens", False, True),
            Metric("latency_ms", "ms", "whole request", False, True),
        )
    }
)


@dataclass(frozen=True)
class Sample:
    """One measurement. ``at`` = seconds since the run began."""

    at: float
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """One run. ``outcome`` is what the run said at its end, else ``running`` or ``interrupted``; times are UTC.

    ``torn`` = the last line is cut off (a kill or a power cut in the middle of a write); the lines before it are here.
    """

    path: Path
    id: str
    kind: str
    started: datetime
    environment: Mapping[str, Any]
    parameters: Mapping[str, Any]
    samples: tuple[Sample, ...]
    outcome: str
    summary: Mapping[str, Any]
    ended: datetime | None = None
    torn: bool = False


def frozen(value: Any) -> Any:
    """A JSON value that nobody can change: mappings become read-only views, lists become tuples."""
    if isinstance(value, dict):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple([frozen(item) for item in value])
    return value


def plain(value: Any) -> Any:
    """The same as dicts and lists, for printing as JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value
