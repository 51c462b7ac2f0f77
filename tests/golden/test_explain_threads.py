"""envgen/explain/threads.json: public threads by the words of their deciding line, with what was found out there."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from envgen.explain import rules
from envgen.explain.line import read_line
from envgen.explain.unknown import words_of

TOP = Path(__file__).resolve().parents[2]
TOLD = " (there: {cause}; what helped: {fix})"
SNAPSHOT = TOP / "envgen/explain/threads.json"


def _snapshot() -> str:
    """The threads of one line, of three words or more; most of them known by one."""
    entries = (TOP / "benchmarks/data/explain/learn.jsonl").read_text("utf-8").splitlines()
    found = [
        (line, entry["address"], TOLD.format(**entry).replace(".;", ";").replace(".)", ")"))
        for entry in map(json.loads, entries)
        for line in [line for line in entry["log"] if entry["line"] in line][:1]
    ]
    found += [(rule.example.splitlines()[-1], rule.link, "") for rule in rules() if rule.quoted]
    threads = defaultdict[str, dict[str, str]](dict)
    for line, address, told in found:
        words = words_of(read_line(line)[2].strip()[:400])
        if len(words) > 2 and "github.com" in address:
            threads[" ".join(words)].setdefault(address, told)
    rows = {words: [*map("".join, addresses.items())][:3] for words, addresses in sorted(threads.items())}
    return json.dumps(rows, indent=0, ensure_ascii=False) + "\n"


def test_the_threads_are_those_of_the_corpus_and_the_rules(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        SNAPSHOT.write_text(_snapshot(), encoding="utf-8")
    assert SNAPSHOT.read_text("utf-8") == _snapshot(), "run scripts/regenerate"
