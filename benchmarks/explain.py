"""What `envgen explain` makes of public failures: python benchmarks/explain.py [--details]

data/explain/ has two halves of a corpus: `learn.jsonl`, from which rules may be written, and
`measure.jsonl`, which is only measured here and never read for a rule. They were cut once, by a fixed
seed, before any rule was written for them; what rules cited went to the first half. `lines.jsonl`
has further failures, whose deciding line is shown without any rule (tests/unit/explain), `noise.jsonl`
lines that a rule once took for its own failure, `provoked.jsonl` failures of real programs that were
provoked on purpose: the lines that decide, the rule that explains them now, and how the whole log was
judged when no rule had seen it.
`verdicts.csv` has how failures were judged that were new to the rules (docs/seen.md).

An entry has the address of its thread, an excerpt of the error's own lines (some shortened,
personal details replaced), cause and fix as the thread has them, and how an answer is judged:
`says` and `cure` are expressions for its cause and its fix, `line` is in the deciding line. They
were written before the rules.

right: the first failure that is named has this cause and this fix. part: one of both, or a later
one has them.
wrong: failures are named, and none is that. none: no failure is named. The last figure leaves out
what is called likely only (`FAIL?`, here a rule with `?`). For what is not right,
whether the deciding line is shown is counted, too. --details names the entries of the first half.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from envgen.cli.check.explain import command
from envgen.explain import Explanation
from envgen.explain.read import read_log

FOLDER = Path(__file__).resolve().parent / "data/explain"
SEED = 20261128
GRADES = ("right", "part", "none", "wrong")


@dataclass(frozen=True)
class Entry:
    """A public failure. ``notice``: the server is healthy, and a notice is the right answer."""

    address: str
    cause: str
    fix: str
    says: tuple[str, ...]
    cure: tuple[str, ...]
    line: str
    log: tuple[str, ...]
    notice: bool = False

    def agrees(self, found: Explanation) -> tuple[bool, bool]:
        """Whether cause and fix are those of the thread."""
        return all(re.search(e, found.cause, re.I) for e in self.says), all(
            re.search(e, found.cure, re.I) for e in self.cure
        )


def entries(path: Path) -> list[Entry]:
    """The entries of a file."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Entry(**row | {name: tuple(row[name]) for name in ("says", "cure", "log")}) for row in rows
    ]


def graded(entry: Entry) -> tuple[str, bool, str]:
    """The grade of the answer, whether the deciding line is shown, and the rules that answered."""
    text = "\n".join(entry.log) + "\n"
    found = [
        one for one in read_log(BytesIO(text.encode())).explanations if one.failure or entry.notice
    ]
    shown = CliRunner().invoke(command, ["-"], input=text.encode(), standalone_mode=False).stdout
    agreed = [entry.agrees(one) for one in found]
    grade = "none" if not found else "wrong"
    if any(map(any, agreed)):
        grade = "right" if all(agreed[0]) else "part"
    return grade, entry.line in shown, ", ".join(f"{one.rule}{'?' * one.general}" for one in found)


def measure(path: Path, details: bool) -> str:
    """A row of figures for one half."""
    counts, missing, named, false = Counter[str](), 0, 0, 0
    for entry in (found := entries(path)):
        grade, line, rules = graded(entry)
        counts[grade] += 1
        if rules and "?" not in rules:
            named += 1
            false += grade == "wrong"
        if grade != "right":
            missing += not line
            if details:
                print(f"{grade:5} {line} {entry.address} [{rules}] {entry.cause} FIX {entry.fix}")
    rest = len(found) - counts["right"]
    share = " | ".join(
        f"{counts[grade]} ({100 * counts[grade] / len(found):.0f} %)" for grade in GRADES
    )
    return f"| {path.stem} | {len(found)} | {share} | {rest - missing} of {rest} | {false} of {named} |"


def speed(size: int = 8 << 20) -> str:
    """Seconds of CPU time for a MiB, of a log in which the lines of real ones stand in any order."""
    logs = (FOLDER.parents[2] / "tests/unit/explain/logs").rglob("*.log")
    lines = [line for log in logs for line in log.read_text("utf-8").splitlines()]
    text = "\n".join(random.Random(SEED).choices(lines, k=size // 100))[:size]
    began = time.process_time()
    read_log(BytesIO(text.encode()))
    return f"{(time.process_time() - began) / (len(text) / (1 << 20)):.3f} s of CPU time a MiB"


def main() -> None:
    rows = [
        measure(FOLDER / f"{name}.jsonl", name == "learn" and "--details" in sys.argv)
        for name in ("learn", "measure")
    ]
    print(
        f"| half | logs | {' | '.join(GRADES)} | deciding line shown, of the rest | false, of what is called FAIL |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    print("\n".join(rows))
    print(speed())


if __name__ == "__main__":
    main()
