"""The lines of a record: how one is written, and how one is read with every fault named by file and line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from envgen.errors import Place, ResultsError
from envgen.results.model import FORMAT

# A line of a record is a few hundred bytes; past this the file is something else.
MAX_LINE = 64 * 1024 * 1024


def utc(moment: datetime) -> str:
    """``2026-01-09T16:25:01.123Z``."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(line: Mapping[str, Any]) -> bytes:
    """One line, ending in a newline. JSON knows no NaN and no infinity: they become the texts nan, inf and -inf."""
    return json.dumps(_plain(line), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    ) + b"\n"  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)  # a path, a date, a version: what its owner prints


def fault(path: Path, number: int, message: str, hint: str = "") -> NoReturn:
    """Raise the error for line ``number`` (from 1; 0 = the whole file) of ``path``."""
    raise ResultsError(message, hint=hint, place=Place(str(path), number, 1 if number else 0))


def decode(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ResultsError with file and line for whatever else stands there."""
    if len(raw) > MAX_LINE:
        fault(path, number, "this line is too long for a run record")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        fault(path, number, f"this line is no JSON: {error}", "the file is damaged, or no run record")
    if not isinstance(value, dict):
        fault(path, number, "a line of a run record is a JSON object", "the file is no run record of envgen")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Line:
    """The members of one line, each checked when it is taken."""

    def __init__(self, path: Path, number: int, raw: bytes) -> None:
        self.path = path
        self.number = number
        self.members = decode(path, number, raw)

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self.members.get(name)
        if not isinstance(value, str) or not value:
            self.bad(name, "a text")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object."""
        value = self.members.get(name)
        if not isinstance(value, dict):
            self.bad(name, "an object")
        return value

    def number_of(self, name: str) -> float:
        """A number that is no bool."""
        value = self.members.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.bad(name, "a number")
        try:
            return float(value)
        except OverflowError:
            self.bad(name, "a number that fits")

    def moment(self, name: str) -> datetime:
        """A time with its zone, as UTC."""
        text = self.text(name)
        try:
            # Python 3.10 doesn't read the Z.
            value = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text)
            if value.tzinfo is None:
                self.bad(name, "a time with its zone")
            return value.astimezone(timezone.utc)
        except (ValueError, OverflowError):
            self.bad(name, "a time such as 2026-01-09T16:25:01.000Z")

    def bad(self, name: str, wanted: str) -> NoReturn:
        """Raise: the member is missing or of another kind."""
        what = "is missing" if name not in self.members else "is wrong"
        fault(self.path, self.number, f"`{name}` {what}: it must be {wanted}", "the file is damaged, or no run record")

    def check_format(self) -> None:
        """The first line of a record: it says so, in a format that this envgen reads."""
        if self.members.get("type") != "start" or "format" not in self.members:
            fault(self.path, self.number, "this is no run record of envgen: its first line starts no run")
        number = self.members["format"]
        if isinstance(number, int) and not isinstance(number, bool) and number > FORMAT:
            fault(
                self.path,
                self.number,
                f"format {number} is newer than this envgen, which reads {FORMAT}",
                "update envgen",
            )
        if number != FORMAT or isinstance(number, bool):
            fault(self.path, self.number, f"format {number!r} is none that envgen ever wrote")
