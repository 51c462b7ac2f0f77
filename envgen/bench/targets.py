"""Targets: somebody's speeds for the same model, and how far a measurement is from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from envgen.binding import JsonDict, JsonObject
from envgen.errors import UsageError
from envgen.profile.model import Target
from envgen.text import visible

# Names of figures in a profile -> those of a record.
FIGURES = {"decode": "decode_tps", "prefill": "prefill_tps", "first_token": "ttft_ms"}
BY_LENGTH = {"tg": ("decode", "output_tokens"), "pp": ("prefill", "prompt_tokens")}
_LIMIT = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>[-+])\s*(?P<percent>\d{1,3}(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Gap:
    """A figure of a target beside the measured median. ``percent``: + is better than the target."""

    target: str
    figure: str
    wanted: float
    measured: float
    test: str
    source: str

    @property
    def percent(self) -> float:
        ratio = self.measured / self.wanted - 1
        return -100 * ratio if self.figure == "first_token" else 100 * ratio

    def plain(self) -> JsonDict:
        """For JSON and for the record."""
        return {**asdict(self), "percent": round(self.percent, 2), "text": str(self)}

    def __str__(self) -> str:
        better = f"{self.percent:+.0f} %"
        return f"{self.wanted:g} {self.target} ({self.figure}): {self.measured:,.2f}, {better}"


def gaps(targets: Mapping[str, Target], cells: Iterable[JsonObject]) -> list[Gap]:
    """The gap to each figure that one of the measured ``cells`` answers, in the order of the file."""
    rows = []
    for cell in cells:
        for name, target in targets.items():
            is_same = cell["context_tokens"] == target.depth
            if not is_same or cell["concurrency"] != target.concurrency:
                continue
            for figure, wanted in target.figures.items():
                measured = _measured(cell, figure)
                if measured is not None:
                    test = str(cell["test"])
                    rows.append(Gap(name, figure, float(wanted), measured, test, target.source))
    return rows


def _measured(cell: JsonObject, figure: str) -> float | None:
    """The cell's median of a figure; None where it has another length, or none."""
    kind = figure
    if figure[:2] in BY_LENGTH and figure[2:].isdigit():
        kind, length = BY_LENGTH[figure[:2]]
        if cell[length] != int(figure[2:]):
            return None
    measured = cell.get(FIGURES[kind])
    return float(measured["median"]) if measured else None


@dataclass(frozen=True)
class AtLeast:
    """``llama.cpp -20%``: the least that a run must reach."""

    target: str
    percent: float

    def missed(self, rows: Iterable[Gap]) -> list[Gap]:
        """The figures below it. UsageError where the run has no figure of the target: what was not
        measured is not reached.
        """
        asked = [row for row in rows if row.target == self.target]
        if not asked:
            raise UsageError(
                f"--at-least: nothing that {self.target} has was measured",
                hint="`targets` of the profile has its figures; --pp, --tg, --depth and -c choose what is measured",
            )
        return [row for row in asked if row.percent < self.percent]


def at_least(text: str, targets: Mapping[str, Target]) -> AtLeast:
    """Read the option. UsageError where it names no target of the profile."""
    match = _LIMIT.fullmatch(text)
    name = match["name"] if match else text.strip()
    if name not in targets:
        known = ", ".join(targets) or "none; write them below `targets`"
        raise UsageError(
            f"--at-least: the profile has no target {visible(name)!r}", hint=f"it has: {known}"
        )
    percent = float(match["sign"] + match["percent"]) if match else 0.0
    return AtLeast(name, percent)
