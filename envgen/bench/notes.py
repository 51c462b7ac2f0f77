"""Runs that others measured: those that ship with envgen (history.yaml), and lab notes in Markdown.

Notes have tables, aligned text and ``key: value`` lines. In all of them a name such as ``tg32 @ d4096`` or ``TTFT``
tells what a number is. A line with figures that is not read is handed back with the reason.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.errors import Place, ResultsError
from envgen.text import reason_of

MAX_SIZE = 16 << 20
HISTORY = Path(__file__).with_name("history.yaml")


@dataclass
class Foreign:
    """One run as its file has it. ``started`` is None where no date is given; ``name``: of a shipped reference."""

    label: str
    started: datetime | None
    environment: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A line with figures that was not imported, and why."""

    line: int
    text: str
    why: str


def moment(value: Any) -> datetime | None:
    """A date or time as UTC, or None. What names no zone is read as UTC."""
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", str(value).strip()))
        return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def shipped() -> list[Foreign]:
    """The runs of history.yaml, which ships with envgen; a figure there is a mean, or a mean and its deviation."""
    document = yaml.safe_load(HISTORY.read_text(encoding="utf-8"))
    return [
        Foreign(
            run["label"], moment(run["date"]),
            {**document["environment"], **run.get("environment", {}), "imported": {"source": document["source"]}},
            run.get("parameters", {}), [_shipped(one) for one in run["figures"]], run.get("name", ""),
        )
        for run in document["runs"]
    ]  # fmt: skip


def _shipped(figures: Mapping[str, Any]) -> dict[str, Any]:
    spread = {key: value[1] for key, value in figures.items() if isinstance(value, list)}
    return {"unit": "aggregate", **figures, **{key: figures[key][0] for key in spread}, "spread": spread}


# --- lab notes in Markdown -------------------------------------------------------------------------------------------

_METRICS = {
    "ttfr": "ttfr_ms", "e2e ttft": "ttft_ms", "ttft": "ttft_ms", "ttft p50": "ttft_ms", "tpot": "itl_ms",
    "output throughput": "decode_tps", "output token throughput": "decode_tps", "decode throughput": "decode_tps",
    "decode": "decode_tps",
}  # fmt: skip
_TEST = re.compile(r"(?:decode )?(pp|tg|prefill) ?=? ?(\d{1,9})?(?: ?@ ?d(\d{1,9}))?(?: ?\(c(\d{1,6})\))?")
_UNIT = re.compile(r"\s*\((?:tok/s|t/s|ms)\)|_tps$|_ms$")
_VALUE = re.compile(r"~?(\d[\d,]{0,15}(?:\.\d{1,15})?)(?:\s*(?:±|\+/-)\s*(\d[\d,.]{0,15}))?\s*(?:ms|tok/s|t/s)?")
_FIGURE = re.compile(r"\d\s*(?:tok/s|t/s)|\((?:tok/s|t/s|ms)\)|\b(?:pp|tg)\d")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d)?\b")
_PROMPT = re.compile(r"\b(?:pp\s*=|prompt_length:|prompt_tokens:)\s*(\d{1,9})")
_TESTS = ("test", "metric", "output length")  # columns that name the test of a row...
_RATES = ("t/s", "tok/s", "throughput", "mean", "value")  # ...and those that have its figure

Named = tuple[str, dict[str, int]]  # a metric and its cell
_Row = tuple[int, str, list[str]]  # number of the line, its text, the cells of a table


def _named(text: str) -> Named | None:
    """What the name of a column, a row or a key stands for; None: it is not a name that is known."""
    name = _UNIT.sub("", text.lower().strip()).replace("_", " ")
    if name in _METRICS:
        return _METRICS[name], {}
    found = _TEST.fullmatch(name)
    if not found:
        return None
    length, reply = found[2], found[1] == "tg"
    cell = {"context_tokens": int(found[3] or 0), "concurrency": int(found[4] or 1)}
    sized = {"output_tokens" if reply else "prompt_tokens": int(length)} if length else {}
    return "decode_tps" if reply else "prefill_tps", cell | sized


class _Reader:
    """Reads line by line; the sections around a line tell its date, its label and the prompt."""

    def __init__(self, when: datetime | None, title: str) -> None:
        self.when = self.date = when
        self.title, self.sub = title, ""
        self.prompt: int | None = None
        self.runs: dict[str, Foreign] = {}
        self.left: list[LeftOut] = []
        self.seen: set[tuple[Any, ...]] = set()

    @property
    def label(self) -> str:
        return f"{self.title}: {self.sub}" if self.sub else self.title

    def leave(self, place: int, text: str, why: str) -> None:
        found = LeftOut(place, text[:120], why[:120])
        if found not in self.left[-1:]:
            self.left.append(found)

    def take(self, place: int, text: str, label: str, named: Named, value: str, prompt: int | None) -> None:
        """One figure. ``prompt``: the tokens of it, where the name doesn't have them."""
        found = _VALUE.fullmatch(re.sub(r"\s*\([^)]*\)$", "", value.strip()))
        sized = {} if prompt is None else {"prompt_tokens": prompt}
        cell = {"context_tokens": 0, "concurrency": 1, **sized, **named[1]}
        key = (label, named[0], *sorted(cell.items()))
        if not found:
            self.leave(place, text, f"not a number: {value.strip()}")
        elif self.date is None:
            self.leave(place, text, "no date is given here: import it with --date")
        elif key in self.seen:
            self.leave(place, text, "this test has a figure above")
        else:
            self.seen.add(key)
            mean, *sd = (float(number.replace(",", "")) for number in found.groups() if number)
            sample = {"unit": "aggregate", **cell, named[0]: mean, "spread": {named[0]: sd[0]} if sd else {}}
            self.runs.setdefault(label, Foreign(label, self.date)).samples.append(sample)

    def heading(self, level: str, text: str) -> None:
        self.sub = _bare(text)
        if level in ("#", "##"):
            self.title, self.sub, self.prompt, self.date = self.sub, "", None, self.when

    def line(self, place: int, text: str) -> None:
        """``key: value`` (another one may stand behind a #), or a sentence."""
        if found := _PROMPT.search(text):
            self.prompt = int(found[1])
        if (found := _DATE.search(text)) and text.lower().startswith(("#", "**date", "**status", "date:")):
            self.date = moment(found[0])
        prompt, read = self.prompt, text.startswith("#")
        for part in _bare(text).split("#"):
            key, colon, value = part.partition(":")
            if colon and (named := _named(key)):
                self.take(place, text, self.label, named, value, prompt)
                prompt, read = named[1].get("prompt_tokens", prompt), True
        if not read and re.search(r"\d\s*(?:tok/s|t/s)", text):
            self.leave(place, text, "a sentence")

    def table(self, rows: list[_Row]) -> None:
        """The first row names what is in the columns; or a column names the tests, and another one has the rates."""
        (place, text, head), *body = rows
        plain = [cell.lower().partition(" (")[0] for cell in head]
        names = [_named(cell) for cell in head]
        tests, rate, sd = (next((i for i, cell in enumerate(plain) if cell in known), None)
                           for known in (_TESTS, _RATES, ("std dev", "std", "sd")))  # fmt: skip
        if not any(names) if tests is None else rate is None:
            if any(_FIGURE.search(line) for _, line, _ in rows):
                self.leave(place, text, f"a table of {len(body)} rows without a column of measured values")
            return
        prompts = [named[1]["prompt_tokens"] for named in names if named and "prompt_tokens" in named[1]]
        of_depth: dict[int, int] = {}  # llama-benchy: a reply follows the prompt of the row above
        llama_bench = "ngl" in plain or re.search(r"llama-bench\b(?!y)", self.label)
        for place, text, row in body:
            row += [""] * (len(head) - len(row))
            label, prompt, test, cell = self.label, self.prompt, None, dict[str, int]()
            if tests is None:  # a configuration in each row, such as Short (512)
                own = re.search(r"\((\d{1,9})\)", row[0])
                label = f"{self.title}: {row[0]}"
                prompt = int(own[1]) if own else prompts[0] if len(prompts) == 1 else prompt
            elif test := _named(row[tests]):
                cell = {name: size for name, size in test[1].items() if name != "output_tokens"}
                if "prompt_tokens" in cell and plain[tests] == "test":
                    of_depth[cell["context_tokens"]] = cell["prompt_tokens"]
                prompt = of_depth.get(cell.get("context_tokens", 0), prompt)
            if rate is not None and sd is not None and row[sd]:
                row[rate] += f" ± {row[sd].lstrip('±')}"
            if "garbage" in text.lower():
                self.leave(place, text, "marked as garbage")
                row = []
            for i, value in enumerate(row):
                if i in (tests, sd) or not re.search(r"\d", value):
                    continue
                named = test if i == rate else names[i]
                if named:
                    empty = named[0] == "decode_tps" and (llama_bench or "llama.cpp" in row[0])  # llama-bench's way
                    self.take(place, text, label, (named[0], cell | named[1]), value, 0 if empty else prompt)
                elif i == rate or _FIGURE.search(f"{head[i]} {value}"):
                    self.leave(place, text, f"its column {head[i]} is not read")


def read_notes(text: str, when: datetime | None, label: str) -> tuple[list[Foreign], list[LeftOut]]:
    """Every figure of the notes that is read, and every line or table with figures that is left out."""
    reader, fenced, rows = _Reader(when, label), False, list[_Row]()
    for place, line in enumerate(map(str.strip, text.splitlines()), 1):
        fenced ^= line.startswith("```")
        cells = [_bare(cell) for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if fenced and len(columns := re.split(r"\s{2,}", line)) >= 3:
            cells = columns  # aligned text
        if set("".join(cells)) - set(":-") or not cells:
            # A comment in a fence is not a heading.
            rows.append((place, line.lstrip("# ") if fenced else line, cells))
    for is_table, group in itertools.groupby(rows, lambda row: bool(row[2])):
        if is_table:
            reader.table(list(group))
            continue
        for place, line, _ in group:
            if found := re.match(r"(#{1,3}) (.*)|<(summary)>(.*?)<", line):
                reader.heading(found[1] or "", found[2] or found[4])
            reader.line(place, line)
    return list(reader.runs.values()), reader.left


def parse(path: Path, when: datetime | None) -> tuple[list[Foreign], list[LeftOut]]:
    """The runs of a file, and what is left out. ResultsError where it can't be read, or holds no figures."""
    try:
        content = files.read(path, limit=MAX_SIZE)
        runs, left = read_notes(content.decode("utf-8-sig"), when, path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"can't be read: {reason_of(error)}", place=Place(str(path))) from None
    if not runs and not left:
        hint = "docs/benchmarking.md says which lines and tables are read"
        raise ResultsError("no figures were found in it", hint=hint, place=Place(str(path)))
    source = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}
    return [replace(one, environment={"imported": source}) for one in runs], left


def _bare(text: str) -> str:
    """Without emphasis, code marks, list marks and pictures."""
    kept = "".join(c for c in text if c not in "*`\ufe0f" and not 0x2600 <= ord(c) <= 0x27BF and ord(c) < 0x1F000)
    return kept.strip().removeprefix("- ").strip()
