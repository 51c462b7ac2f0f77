"""Lab notes in Markdown: tables, aligned text and ``key: value`` lines. What is not read is handed back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from envgen.bench.history import TEST, Foreign, LeftOut, figure, moment, test_sample
from envgen.bench.record import METRICS

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
class _Section:
    """What is known since the last ``##`` heading. ``seen``: cell and name -> values that were read."""

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


class _Reader:
    def __init__(self, when: datetime | None, label: str) -> None:
        self.when, self.section = when, _Section(label)
        self.runs: list[Foreign] = []
        self.left: list[LeftOut] = []

    def leave(self, line: int, text: str, why: str) -> None:
        found = LeftOut(line, text.strip()[:120], why)
        if found not in self.left:
            self.left.append(found)

    def take(self, run: Foreign, line: int, text: str, sample: dict[str, Any] | None, why: str) -> None:
        """A sample into its run, or its line among those that are left out."""
        if sample is None:
            return self.leave(line, text, why)
        if (run.started or self.section.date or self.when) is None:
            return self.leave(line, text, "no date is given here: import it with --date")
        if run.label in (self.section.title, self.section.label) and self._repeats(sample):
            return self.leave(line, text, "repeats a figure above")
        if run not in self.runs:
            run.started = run.started or self.section.date or self.when
            run.line = line
            self.runs.append(run)
        run.samples.append(sample)
        return None

    def _repeats(self, sample: dict[str, Any]) -> bool:
        """The same cell and figure again in this section, or the same one rounded."""
        cell = tuple(sample.get(k) for k in ("output_tokens", "context_tokens", "concurrency"))
        found = False
        for name in METRICS:
            if (value := sample.get(name)) is not None:
                prompt = None if name == "decode_tps" else sample.get("prompt_tokens")
                before = self.section.seen.setdefault((name, prompt, *cell), [])
                digits = len(f"{value:.15g}".partition(".")[2])
                found |= any(abs(one - value) < 10.0**-digits for one in before)
                before.append(value)
        return found

    def run(self, label: str) -> Foreign:
        facts = dict(self.section.facts)
        tool = {"tool": facts.pop("tool")} if "tool" in facts else {}
        return Foreign(label, None, {"notes": facts} if facts else {}, tool)

    # --- lines and tables ---------------------------------------------------------------------------------------------

    def heading(self, line: str) -> None:
        text = _bare(line.lstrip("#").strip())
        if line.startswith(("## ", "# ")):
            self.section = _Section(text)
        else:
            self.section.sub = text
        self.section.date = _date(line) or self.section.date
        self._prompt(line)

    def _prompt(self, line: str) -> None:
        if found := re.search(r"\b(?:pp\s*=|prompt_length:|prompt_tokens:)\s*(\d+)", line):
            self.section.prompt = int(found[1])

    def plain_line(self, number: int, line: str, fenced: bool) -> None:
        """``tg32_tps: 31.58 ± 0.06``, ``TTFT: 49.87 ms``; other keys are facts of the section."""
        self._prompt(line)
        found = _PLAIN.fullmatch(line.partition("#")[0].strip())
        if not found:
            if _FIGURE.search(line) and re.search(r"\d\s*(?:tok/s|t/s)", line):
                self.leave(number, line, "a sentence")
            return
        key, value = found[1].strip(), re.sub(r"\s*\(.*\)$", "", found[2].strip())
        if key.startswith("date"):
            self.section.date = _date(line) or self.section.date
            return
        test = TEST.match(key)
        name = _NAMES.get(key.lower().removesuffix("_ms")) or _NAMES.get(key.lower())
        if not test and not name:
            if fenced and not _FIGURE.search(line):
                self.section.facts[key] = value
            elif re.search(r"\d\s*(?:tok/s|t/s)", line):
                self.leave(number, line, "a sentence")
            return
        label = self.section.title if self.section.facts else self.section.label
        self.section.plain = self.section.plain or self.run(label)
        prompt = self.section.prompt if test and test[1] == "tg" else None
        sample = (
            test_sample(test[0], {"": _pair(value), **_remark(line)}, [], prompt=prompt) if test
            else _named(str(name), value, self.section.prompt)
        )  # fmt: skip
        self.take(self.section.plain, number, line, sample, "not a number")

    def table(self, rows: list[tuple[int, str, list[str]]]) -> None:
        """Rows of cells; the first is the header."""
        head, body = [cell.lower() for cell in rows[0][2]], rows[1:]
        known = [i for i, cell in enumerate(head) if cell in ("test", "metric", "output length")]
        tests = {i: m[0] for i, cell in enumerate(head) if (m := TEST.search(cell)) and i and "@ " not in cell}
        for i, cell in enumerate(head):
            if i and i not in tests and cell.startswith(("prefill (", "decode (")):
                tests[i] = cell.partition(" ")[0]
        if known:
            self._by_test(head, known[0], body)
        elif tests:
            self._by_config(head, tests, body)
        else:
            for number, text, _ in body:
                if re.search(r"\d", text.partition("|")[2].partition("|")[2]):
                    self.leave(number, text, f"no column names a test ({', '.join(head)})"[:120])

    def _by_test(self, head: list[str], column: int, body: list[tuple[int, str, list[str]]]) -> None:
        rate = next((i for i, c in enumerate(head) if i != column and c.partition("(")[0].strip() in _RATES), None)
        deviation = next((i for i, c in enumerate(head) if c.startswith(("std", "sd"))), None)
        columns = {i: _NAMES[c.partition("(")[0].strip()] for i, c in enumerate(head)
                   if c.partition("(")[0].strip() in _NAMES and c != "decode"}  # fmt: skip
        dates = head.index("date") if "date" in head else None
        configs = head.index("config") if "config" in head else None
        # llama-bench generates from an empty context; llama-benchy prefills first.
        llama_bench = {"backend", "ngl"} & set(head) or re.search(r"llama-bench\b(?!y)", self.section.label)
        run = self.run(self.section.label)
        for number, text, row in body:
            if rate is None or len(row) <= rate:
                if _FIGURE.search(text):
                    self.leave(number, text, f"a comparison: no column of measured values ({', '.join(head)})"[:120])
                continue
            mean, sd = _pair(row[rate])
            if deviation is not None and deviation < len(row):
                sd = figure(row[deviation].lstrip("±"))
            values = {"": (mean, sd), **{ours: _pair(row[i]) for i, ours in columns.items() if i < len(row)}}
            name = row[column].partition("(")[0].strip()
            if configs is not None or dates is not None:  # a run of its own in each row
                run = self.run(row[configs] if configs is not None and configs < len(row) else self.section.label)
                run.started = _date(row[dates]) if dates is not None and dates < len(row) else None
            metric = _NAMES.get(name.lower())
            prompt = 0 if llama_bench and name.startswith("tg") else None
            if prompt is None and name.startswith("tg") and (deviation is not None or head[column] != "test"):
                prompt = self.section.prompt  # not a tool's own table: its tg does not follow its last pp
                sample = test_sample(name, values, [], prompt=prompt)
            else:
                sample = _named(metric, row[rate], None) if metric else test_sample(name, values, run.samples, prompt)
            if configs is not None and "baseline" in head:
                self.leave(number, text, "its column `Baseline` names no configuration")
            if sample is not None or _FIGURE.search(text):
                self.take(run, number, text, sample, "not a test with a number")

    def _by_config(self, head: list[str], tests: dict[int, str], body: list[tuple[int, str, list[str]]]) -> None:
        notes = [i for i, cell in enumerate(head) if i not in tests]
        latencies = {i: ours for i in notes if (ours := _NAMES.get(head[i].partition("(")[0].strip()))}
        prompts = {TEST.fullmatch(name)[2] for name in tests.values() if name.startswith("pp")}  # type: ignore[index]
        for number, text, row in body:
            if not any(ch.isdigit() for i, cell in enumerate(row) for ch in cell if i in tests):
                if row and any(row):
                    self.leave(number, text, "no number in it")
                continue
            if any(_BAD.search(row[i]) for i in notes if i < len(row)) or (
                _BAD.search(text) and "garbage" in text.lower()
            ):
                self.leave(number, text, "marked as garbage")
                continue
            run = self.run(f"{self.section.title}: {row[0]}" if row[0] not in self.section.title else row[0])
            own = re.search(r"\((\d+)\)", row[0])  # a row such as Short (512)
            prompt = int(own[1]) if own else int(next(iter(prompts))) if len(prompts) == 1 else self.section.prompt
            for i, name in tests.items():
                cell = row[i] if i < len(row) else ""
                if not any(ch.isdigit() for ch in cell):
                    continue
                if name.startswith("tg") and "llama.cpp" in row[0]:
                    prompt = 0  # llama-bench generates from an empty context
                named = f"pp{prompt}" if name == "prefill" and prompt else name
                if name == "decode":
                    sample = _named("decode_tps", cell, None)
                else:
                    sample = test_sample(named, {"": _pair(cell)}, [], prompt if named.startswith("tg") else None)
                self.take(run, number, text, sample, f"{head[i]}: {cell} is not a number")
            for i, ours in latencies.items():
                if i < len(row) and (sample := _named(ours, row[i], prompt)):
                    self.take(run, number, text, sample, "")
            unread = [
                head[i] for i in notes[1:] if i not in latencies and i < len(row) and re.match(r"[~+-]?\d", row[i])
            ]
            if unread:
                self.leave(number, text, f"columns that are not read: {', '.join(unread)}")


def read_notes(text: str, when: datetime | None, label: str) -> tuple[list[Foreign], list[LeftOut]]:
    """Every figure of the notes, and every line with figures that is left out, with the reason."""
    reader = _Reader(when, label)
    lines = text.splitlines()
    index, fenced = 0, False
    while index < len(lines):
        line = lines[index].strip()
        number = index + 1
        index += 1
        if line.startswith("```"):
            fenced = not fenced
        elif line.startswith("#") and not fenced:
            reader.heading(line)
        elif line.startswith("<summary>"):
            reader.section.sub = _bare(re.sub(r"<[^>]*>", "", line))
        elif line.startswith("|"):
            rows = [(number, line, _cells(line))]
            while index < len(lines) and lines[index].strip().startswith("|"):
                rows.append((index + 1, lines[index].strip(), _cells(lines[index])))
                index += 1
            if len(rows) > 1 and all(set(cell) <= set(":- ") for cell in rows[1][2]):
                reader.section.date = reader.section.date or _date_after(lines, index)
                reader.table([rows[0], *rows[2:]])
        elif fenced and len(parts := re.split(r"\s{2,}", line)) >= 3 and "test" in parts:
            rows = [(number, line, parts)]
            while index < len(lines) and lines[index].strip() and not lines[index].strip().startswith("```"):
                rows.append((index + 1, lines[index], re.split(r"\s{2,}", lines[index].strip())))
                index += 1
            reader.table(rows)
        else:
            if line.startswith(("**Date", "**Status", "date:")):
                reader.section.date = _date(line) or reader.section.date
            reader.plain_line(number, _bare(line), fenced)
    return reader.runs, reader.left


def _date(text: str) -> datetime | None:
    found = _DATE.search(text)
    return moment(found[1]) if found else None


def _date_after(lines: list[str], index: int) -> datetime | None:
    return next((_date(line) for line in lines[index : index + 5] if line.startswith("date:")), None)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
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
