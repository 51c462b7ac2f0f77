"""Runs that others measured: those that ship with envgen (history.yaml), and lab notes in Markdown.

Notes hold tables, aligned text and ``key: value`` lines. What is not read is handed back with its line and the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from envgen.bench.compare import number
from envgen.bench.record import METRICS

HISTORY = Path(__file__).with_name("history.yaml")
TEST = re.compile(r"(pp|tg)\s*=?\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?(?:\s*\(c(\d{1,6})\))?")
_DATE = re.compile(r"\b(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d)?)\b")
_PAIR = re.compile(r"(\S+?)\s*(?:±|\+/-|\+-)\s*(\S+)(?:\s*(?:ms|tok/s|t/s))?")
_PLAIN = re.compile(r"([A-Za-z][\w ./-]*):\s+(.*)")
_NAMES = {
    "ttfr": "ttfr_ms", "e2e_ttft": "ttft_ms", "e2e ttft": "ttft_ms", "ttft": "ttft_ms", "ttft p50": "ttft_ms",
    "tpot": "itl_ms", "output throughput": "decode_tps", "output token throughput": "decode_tps",
    "decode_throughput": "decode_tps", "decode": "decode_tps",
}  # fmt: skip
_RATES = ("t/s", "tok/s", "throughput", "mean", "value", "best")
_BAD = re.compile(r"garbage|❌", re.IGNORECASE)
_FIGURE = re.compile(r"\d\s*\**\s*(?:tok/s|t/s|tokens/s)|\b(?:pp|tg)\s*=?\s*\d", re.IGNORECASE)


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


# --- lab notes in Markdown -------------------------------------------------------------------------------------------


@dataclass
class _Section:
    """What is known since the last ``##`` heading. ``seen``: figure and cell -> values that were read."""

    title: str
    sub: str = ""
    date: datetime | None = None
    prompt: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    plain: Foreign | None = None
    seen: dict[tuple[Any, ...], list[float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.title}: {self.sub}" if self.sub else self.title

    def repeats(self, sample: Mapping[str, Any]) -> bool:
        """The same cell and figure again, or the same one rounded."""
        cell = [sample.get(key) for key in ("output_tokens", "context_tokens", "concurrency")]
        found = False
        for name in METRICS.keys() & sample.keys():
            prompt = None if name == "decode_tps" else sample.get("prompt_tokens")
            before, value = self.seen.setdefault((name, prompt, *cell), []), sample[name]
            digits = len(f"{value:.15g}".partition(".")[2])
            found |= any(abs(one - value) < 10.0**-digits for one in before)
            before.append(value)
        return found

    def run(self, label: str) -> Foreign:
        facts = dict(self.facts)
        tool = {"tool": facts.pop("tool")} if "tool" in facts else {}
        return Foreign(label, None, {"notes": facts} if facts else {}, tool)


_Line = tuple[int, str, list[str]]  # number, text, cells


class _Reader:
    def __init__(self, when: datetime | None, label: str) -> None:
        self.when, self.section = when, _Section(label)
        self.runs: list[Foreign] = []
        self.left: list[LeftOut] = []

    def leave(self, line: int, text: str, why: str) -> None:
        found = LeftOut(line, text.strip()[:120], why[:120])
        if found not in self.left:
            self.left.append(found)

    def take(self, run: Foreign, line: int, text: str, sample: dict[str, Any] | None, why: str) -> None:
        """A sample into its run, or its line among those that are left out."""
        date = run.started or self.section.date or self.when
        if sample is None:
            self.leave(line, text, why)
        elif date is None:
            self.leave(line, text, "no date is given here: import it with --date")
        elif run.label in (self.section.title, self.section.label) and self.section.repeats(sample):
            self.leave(line, text, "repeats a figure above")
        else:
            if run not in self.runs:
                run.started, run.line = date, line
                self.runs.append(run)
            run.samples.append(sample)

    def heading(self, line: str) -> None:
        text = _bare(line.lstrip("#").strip())
        if line.startswith(("## ", "# ")):
            self.section = _Section(text)
        else:
            self.section.sub = text
        self.section.date = _date(line) or self.section.date
        self.prompt(line)

    def prompt(self, line: str) -> None:
        if found := re.search(r"\b(?:pp\s*=|prompt_length:|prompt_tokens:)\s*(\d+)", line):
            self.section.prompt = int(found[1])

    def plain_line(self, place: int, line: str, fenced: bool) -> None:
        """``tg32_tps: 31.58 ± 0.06``, ``TTFT: 49.87 ms``; other keys are facts of the section."""
        self.prompt(line)
        section, sentence = self.section, bool(re.search(r"\d\s*(?:tok/s|t/s)", line))
        found = _PLAIN.fullmatch(line.partition("#")[0].strip())
        key, value = (found[1].strip(), re.sub(r"\s*\(.*\)$", "", found[2].strip())) if found else ("", "")
        test, name = TEST.match(key), _NAMES.get(key.lower().removesuffix("_ms"))
        if key.startswith("date"):
            section.date = _date(line) or section.date
        elif test or name:
            section.plain = section.plain or section.run(section.title if section.facts else section.label)
            if name:
                sample = _named(name, value, section.prompt)
            elif test:
                prompt = section.prompt if test[1] == "tg" else None
                sample = test_sample(test[0], {"": _pair(value), **_remark(line)}, [], prompt)
            self.take(section.plain, place, line, sample, "not a number")
        elif key and fenced and not _FIGURE.search(line):
            section.facts[key] = value
        elif sentence:
            self.leave(place, line, "a sentence")

    def table(self, rows: list[_Line]) -> None:
        """Rows of cells; the first is the header."""
        head, body = [cell.lower() for cell in rows[0][2]], rows[1:]
        for _, _, row in body:
            row += [""] * (len(head) - len(row))
        known = [i for i, cell in enumerate(head) if cell in ("test", "metric", "output length")]
        tests = {i: m[0] for i, cell in enumerate(head) if (m := TEST.search(cell)) and i and "@ " not in cell}
        tests |= {i: cell.partition(" ")[0] for i, cell in enumerate(head)
                  if i and i not in tests and cell.startswith(("prefill (", "decode ("))}  # fmt: skip
        if known:
            self._by_test(head, known[0], body)
        elif tests:
            self._by_config(head, tests, body)
        else:
            for place, text, _ in body:
                if re.search(r"\d", text.partition("|")[2].partition("|")[2]):
                    self.leave(place, text, f"no column names a test ({', '.join(head)})")

    def _by_test(self, head: list[str], column: int, body: list[_Line]) -> None:
        names = [cell.partition("(")[0].strip() for cell in head]
        rate = next((i for i, name in enumerate(names) if i != column and name in _RATES), None)
        deviation = next((i for i, cell in enumerate(head) if cell.startswith(("std", "sd"))), None)
        latencies = {i: _NAMES[name] for i, name in enumerate(names) if name in _NAMES and head[i] != "decode"}
        date, config = (head.index(name) if name in head else None for name in ("date", "config"))
        # llama-bench generates from an empty context; llama-benchy prefills first.
        llama_bench = {"backend", "ngl"} & set(head) or re.search(r"llama-bench\b(?!y)", self.section.label)
        run = self.section.run(self.section.label)
        for place, text, row in body:
            if rate is None:
                if _FIGURE.search(text):
                    self.leave(place, text, f"a comparison: no column of measured values ({', '.join(head)})")
                continue
            mean, sd = _pair(row[rate])
            if deviation is not None:
                sd = figure(row[deviation].lstrip("±"))
            values = {"": (mean, sd), **{ours: _pair(row[i]) for i, ours in latencies.items()}}
            name = row[column].partition("(")[0].strip()
            if config is not None or date is not None:  # a run of its own in each row
                run = self.section.run(self.section.label if config is None else row[config])
                run.started = None if date is None else _date(row[date])
            prompt, before = None, run.samples
            if name.startswith("tg"):
                if llama_bench:
                    prompt = 0
                elif deviation is not None or head[column] != "test":
                    prompt, before = self.section.prompt, []  # not a tool's own: its tg does not follow its last pp
            metric = _NAMES.get(name.lower())
            sample = _named(metric, row[rate], None) if metric else test_sample(name, values, before, prompt)
            if config is not None and "baseline" in head:
                self.leave(place, text, "its column `Baseline` names no configuration")
            if sample is not None or _FIGURE.search(text):
                self.take(run, place, text, sample, "not a test with a number")

    def _by_config(self, head: list[str], tests: dict[int, str], body: list[_Line]) -> None:
        notes = [i for i in range(len(head)) if i not in tests]
        latencies = {i: ours for i in notes if (ours := _NAMES.get(head[i].partition("(")[0].strip()))}
        prompts = [int(name[2:]) for name in tests.values() if re.fullmatch(r"pp\d+", name)]
        for place, text, row in body:
            if not any(re.search(r"\d", row[i]) for i in tests):
                if any(row):
                    self.leave(place, text, "no number in it")
                continue
            if any(_BAD.search(row[i]) for i in notes) or "garbage" in text.lower():
                self.leave(place, text, "marked as garbage")
                continue
            config, title = row[0], self.section.title
            run = self.section.run(config if config in title else f"{title}: {config}")
            own = re.search(r"\((\d+)\)", config)  # a row such as Short (512)
            prompt = int(own[1]) if own else prompts[0] if len(prompts) == 1 else self.section.prompt
            for i, name in tests.items():
                if not re.search(r"\d", row[i]):
                    continue
                if name.startswith("tg") and "llama.cpp" in config:
                    prompt = 0  # llama-bench generates from an empty context
                if name == "decode":
                    sample = _named("decode_tps", row[i], None)
                else:
                    named = f"pp{prompt}" if name == "prefill" and prompt else name
                    sample = test_sample(named, {"": _pair(row[i])}, [], prompt if named.startswith("tg") else None)
                self.take(run, place, text, sample, f"{head[i]}: {row[i]} is not a number")
            for i, ours in latencies.items():
                if sample := _named(ours, row[i], prompt):
                    self.take(run, place, text, sample, "")
            unread = [head[i] for i in notes[1:] if i not in latencies and re.match(r"[~+-]?\d", row[i])]
            if unread:
                self.leave(place, text, f"columns that are not read: {', '.join(unread)}")


def read_notes(text: str, when: datetime | None, label: str) -> tuple[list[Foreign], list[LeftOut]]:
    """Every figure of the notes, and every line with figures that is left out, with the reason."""
    reader = _Reader(when, label)
    lines = [line.strip() for line in text.splitlines()]
    rest, fenced = iter(enumerate(lines, 1)), False

    def rows(first: _Line, holds: Callable[[str], bool], cells: Callable[[str], list[str]]) -> list[_Line]:
        """It and the lines behind it, as long as they belong to the table."""
        found = [first]
        for line in itertools.takewhile(holds, lines[first[0] :]):
            found.append((next(rest)[0], line, cells(line)))
        return found

    for place, line in rest:
        if line.startswith("```"):
            fenced = not fenced
        elif line.startswith("#") and not fenced:
            reader.heading(line)
        elif line.startswith("<summary>"):
            reader.section.sub = _bare(re.sub(r"<[^>]*>", "", line))
        elif line.startswith("|"):
            found = rows((place, line, _cells(line)), lambda line: line.startswith("|"), _cells)
            if len(found) > 1 and all(set(cell) <= set(":- ") for cell in found[1][2]):
                after = lines[found[-1][0] :][:5]
                dated = next((_date(line) for line in after if line.startswith("date:")), None)
                reader.section.date = reader.section.date or dated
                reader.table([found[0], *found[2:]])
        elif fenced and "test" in (parts := _columns(line)) and len(parts) >= 3:
            aligned = rows((place, line, parts), lambda line: bool(line) and not line.startswith("```"), _columns)
            reader.table(aligned)
        else:
            if line.startswith(("**Date", "**Status", "date:")):
                reader.section.date = _date(line) or reader.section.date
            reader.plain_line(place, _bare(line), fenced)
    return reader.runs, reader.left


def _date(text: str) -> datetime | None:
    found = _DATE.search(text)
    return moment(found[1]) if found else None


def _columns(line: str) -> list[str]:
    return re.split(r"\s{2,}", line)


def _cells(line: str) -> list[str]:
    inner = line.removeprefix("|").removesuffix("|")
    return [_bare(cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", inner)]


def _bare(text: str) -> str:
    """Without emphasis, code marks, list marks and pictures; a cross that marks garbage stays."""
    kept = "".join(c for c in text if c not in "*`" and not 0x2600 <= ord(c) <= 0x27BF and ord(c) < 0x1F000)
    return kept.replace("\ufe0f", "").strip().removeprefix("- ").strip()


def _pair(cell: str) -> tuple[float | None, float | None]:
    if found := _PAIR.fullmatch(cell.strip()):
        return figure(found[1]), figure(found[2])
    return figure(cell), None


def _named(name: str, value: str, prompt: int | None) -> dict[str, Any] | None:
    mean, sd = _pair(value)
    if mean is None:
        return None
    cell = {"prompt_tokens": prompt} if prompt is not None else {}
    return {"unit": "aggregate", **cell, name: mean, "spread": {} if sd is None else {name: sd}}


def _remark(line: str) -> dict[str, tuple[float | None, float | None]]:
    """``# TTFT: 332ms`` behind a figure."""
    found = re.search(r"#\s*(ttft|ttfr):\s*([\d.]+)\s*ms", line, re.IGNORECASE)
    return {_NAMES[found[1].lower()]: (float(found[2]), None)} if found else {}
