"""Figures from Markdown tables: a test a row (llama-bench, llama-benchy), or a row a configuration."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from envgen.results.foreign import TEST, add_test, dated, moment, plain_number
from envgen.results.imported import Foreign

_HEADING = re.compile(r"#{1,6}\s+(.*)")
_DATE = re.compile(r"\b(\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}:\d{2})?)\b")
_RULE = re.compile(r":?-+:?")
_PAIR = re.compile(r"(\S+)\s*(?:±|\+/-|\+-)\s*(\S+)")
# Columns beside the throughput that llama-benchy's table has.
_LATENCIES = {"ttfr": "ttfr_ms", "e2e_ttft": "ttft_ms", "e2e ttft": "ttft_ms", "ttft": "ttft_ms"}
_RATES = ("t/s", "tok/s", "t/s (total)", "throughput", "mean")


def read_markdown(path: Path, text: str, when: datetime | None, label: str) -> list[Foreign]:
    """Every table of figures in ``text``.

    A table's date is that of a `date:` line just below it, else the last one in a heading or `date:` line above.
    """
    lines = text.splitlines()
    found: list[Foreign] = []
    heading, written = "", None
    index = 0
    while index < len(lines):
        line = lines[index].strip()
        if title := _HEADING.fullmatch(line):
            heading = _bare(title[1])
            written = _date(line) or (None if line.startswith("## ") else written)
        elif _has_date(line):
            written = _date(line) or written
        if not line.startswith("|"):
            index += 1
            continue
        end = index
        while end < len(lines) and lines[end].strip().startswith("|"):
            end += 1
        rows = [_cells(row) for row in lines[index:end]]
        after = next((_date(row) for row in lines[end : end + 5] if row.startswith("date:")), None)
        for name, samples in _table(rows, heading or label):
            found.append(Foreign(name, dated(path, after or written, when, index + 1), {}, {}, samples))
        index = end
    return found


def _has_date(line: str) -> bool:
    return line.startswith(("date:", "**Date", "**Status"))


def _date(line: str) -> datetime | None:
    match = _DATE.search(line)
    return moment(match[1]) if match else None


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [_bare(cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", inner)]


def _bare(text: str) -> str:
    """Without emphasis, code marks, and pictures."""
    kept = "".join(c for c in text if c not in "*`" and not 0x2600 <= ord(c) <= 0x27BF and ord(c) < 0x1F000)
    return kept.replace("\ufe0f", "").strip()


def _table(rows: list[list[str]], heading: str) -> list[tuple[str, list[dict[str, Any]]]]:
    if len(rows) < 3 or not all(_RULE.fullmatch(cell) for cell in rows[1] if cell):
        return []
    header = [cell.lower() for cell in rows[0]]
    body = rows[2:]
    for column in ("test", "metric"):
        if column in header:
            samples = _by_test(header, header.index(column), body)
            return [(heading, samples)] if samples else []
    tests = {index: cell.partition("(")[0].strip() for index, cell in enumerate(header)}
    tests = {index: name for index, name in tests.items() if index and TEST.fullmatch(name)}
    return [(row[0], found) for row in body if (found := _by_config(tests, row))] if tests else []


def _by_test(header: list[str], column: int, body: list[list[str]]) -> list[dict[str, Any]]:
    rate = next((i for i, cell in enumerate(header) if i != column and _is_rate(cell)), None)
    deviation = next((i for i, cell in enumerate(header) if cell.startswith(("std", "sd"))), None)
    latencies = {
        index: _LATENCIES[cell.partition("(")[0].strip()]
        for index, cell in enumerate(header)
        if cell.partition("(")[0].strip() in _LATENCIES
    }
    # llama-bench generates from an empty context, and says which backend it ran on; llama-benchy prefills first.
    prompt = 0 if {"backend", "ngl"} & set(header) else None
    samples: list[dict[str, Any]] = []
    for row in body:
        if rate is None or len(row) != len(header):
            continue
        mean, sd = _pair(row[rate])
        if deviation is not None and sd is None:
            sd = plain_number(row[deviation].lstrip("±"))
        figures = {"": (mean, sd), **{ours: _pair(row[index]) for index, ours in latencies.items()}}
        add_test(samples, row[column], figures, prompt=prompt)
    return samples


def _is_rate(cell: str) -> bool:
    return cell in _RATES or cell.partition("(")[0].strip() in _RATES


def _by_config(tests: dict[int, str], row: list[str]) -> list[dict[str, Any]]:
    prompts = [name for name in tests.values() if name.startswith("pp")]
    only = TEST.fullmatch(prompts[0]) if len(prompts) == 1 else None
    samples: list[dict[str, Any]] = []
    for index, name in tests.items():
        if index < len(row):
            alone: list[dict[str, Any]] = []  # with several prompts in the table, none is known to be a tg's own
            add_test(alone, name, {"": _pair(row[index])}, prompt=int(only[2]) if only else None)
            samples += alone
    return samples


def _pair(cell: str) -> tuple[float | None, float | None]:
    if found := _PAIR.fullmatch(cell):
        return plain_number(found[1]), plain_number(found[2])
    return plain_number(cell), None
