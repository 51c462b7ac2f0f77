"""What a log tells of a failure that no rule knows: its deciding lines, versions, and where to
search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote_plus

from envgen.explain import FOLDER, load_yaml
from envgen.explain.first import CHAINED, SHOWN, TRACEBACK, First, is_consequence
from envgen.explain.line import read_line, search_for
from envgen.text import visible

DECIDING = 3  # lines
BEGINNING = 5000  # lines, in which a program names itself
STARTED = "Application startup complete"
_LEVELS = {"CRITICAL": 2, "ERROR": 2, "DEBUG": -3}
_SOURCE = re.compile(
    r'^ {0,12}(?:File "|raise |return |at |\^|~|frame #|(?:PC: )?@ |\d{1,3}: )|^ {4,}[\w.]+(?: = |\()'
)  # and frames of other languages
_ADVICE = re.compile(
    r"^(?:note|hint|help|for debugging|compile with|please (?:check|see|refer)|see )", re.IGNORECASE
)
# What differs from machine to machine, or would find nothing: paths, addresses, numbers,
# punctuation.
_OWN = re.compile(
    r"\S*[/\\@]\S*|\b0x[0-9a-f]+\b|\b\d[\d.,:x]*\w{0,3}\b|<[^>]{0,80}>|[`\"'()\[\]{}|,;=*#]",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"^(?:\w+\.)*(?:Value|Runtime|Assertion|Type|OS|Key|Attribute)?Error:|^docker:|"
    r"\b(?:error|fatal)(?: response from daemon)?:",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")  # two lines that differ in a time or a number alone say the same
_INFO = re.compile(r"\binfo\b")
_BARE = re.compile(r"^[\w.]+:?\s*$")
_FRAME = re.compile(r'\bFile "[^"]+", line \d+, in (\w+)')
WORDS = 7  # of a search
ALIKE = 0.74  # the share of words that two lines have in common which say the same


@dataclass(frozen=True)
class Clues:
    """``lines``: the deciding ones, each with its number. ``search``: an address that searches for
    the first. ``others``: public threads with a line like one of these, and what was found there.
    """

    lines: tuple[tuple[int, str], ...]
    versions: Mapping[str, str]
    search: str
    others: tuple[str, ...]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = load_yaml("unknown.yaml")
    rows = {"signs": data["signs"], "projects": data["projects"].items()}
    for name, pairs in rows.items():
        data[name] = [(key, re.compile(words, re.IGNORECASE)) for key, words in pairs]
    return {
        **data,
        "stems": search_for(data["stems"]),
        "threads": json.loads((FOLDER.parent / "threads.json").read_text("utf-8")),
    }


def clues(
    lines: Sequence[str], before: int, first: First | None, versions: Mapping[str, str]
) -> Clues:
    """What lines tell that no rule explains; ``before``: the number of lines before them."""
    heaviest = list[tuple[int, int, str]]()
    quiet = list[tuple[int, int, str]]()
    seen = set[str]()
    raised = ""
    for number, line in enumerate(lines, before + 1):
        low = line[:4096].lower()
        if not _data()["stems"].Match(low.encode("utf-8", "replace")):
            continue
        _, level, text = read_line(line[:4096])
        words = text.strip()[:SHOWN]
        template = _DIGITS.sub("", words)
        if template in seen:
            continue
        seen.add(template)
        weight = _weight(level, text[: 2 * SHOWN])
        if weight > 0:
            if words.endswith(":"):
                words = _with_message(words, lines[number - before : number - before + 3])
            found = (-weight, number, words)
            if level == "INFO" or _INFO.search(low[:80]):
                quiet.append(found)
            else:
                heaviest = sorted([*heaviest, found])[:DECIDING]
    if first:
        deciding = [(0, first.line, first.text.strip())]
        raised = first.text
        if _BARE.match(first.text):  # where it was raised says more
            for at in reversed(range(first.line - before - 1)):
                if _FRAME.search(lines[at]):
                    frame = read_line(lines[at])[2].strip()[:SHOWN]
                    deciding.insert(0, (0, before + at + 1, frame))
                    raised += frame.rpartition(",")[2].removeprefix(" in")
                    break
        heaviest = [*deciding, *(line for line in heaviest if line[1] != first.line)][:DECIDING]
    elif not heaviest and not any(
        STARTED in line for line in lines
    ):  # it hangs: what it waits for is not an error
        heaviest = quiet[-1:]
    others = [one for *_, text in heaviest for one in _threads(words_of(text))]
    return Clues(
        tuple((number, text) for _, number, text in sorted(heaviest, key=lambda line: line[1])),
        versions,
        _search(
            raised or (heaviest[0][2] if heaviest else ""),
            first.package if first else "",
            "vllm" in "".join(lines[:BEGINNING]).lower(),
        ),
        tuple(dict.fromkeys(others))[:DECIDING],
    )


def in_words(first: First | None, hints: Clues | None, name: str = "") -> list[str]:
    """The first exception and the other deciding lines, versions and an address. ``name``: of the
    log, for places.
    """
    lines = list[str]()

    def at(number: int) -> str:
        return f"{name}:{number}: " if name else ""

    if first:
        where = f" of {first.process}" if first.process else ""
        lines.append(f"first exception{where}: {at(first.line)}{first.text}")
        lines += [f"raised from: {first.root}"] if first.root else []
        lines += [f"in: {first.component}"] if first.component else []
    if hints:
        lines += [
            f"{at(number)}{text}"
            for number, text in hints.lines
            if not first or number != first.line
        ]
        shown = ", ".join(map(" ".join, hints.versions.items()))
        lines += [f"the log shows: {shown}"] if shown else []
        lines += [f"others with such a line: {one}" for one in hints.others]
        lines += [f"search: {hints.search}"] if hints.search else []
    return [visible(line) for line in lines]


def _with_message(header: str, below: Sequence[str]) -> str:
    """A line that announces its message (of CMake, a panic, a crash of Python), with the first line
    below it.
    """
    message = next((text for line in below if (text := read_line(line)[2].strip())), "")
    return f"{header} {message}"[:SHOWN]


def _threads(words: Sequence[str]) -> list[str]:
    """Public threads whose deciding line has most of these words."""
    wanted = {*words}
    alike = list[str]()
    for line, threads in _data()["threads"].items():
        known = {*line.split()}
        if len(wanted & known) > ALIKE * len(wanted | known):
            alike += threads
    return alike


def _weight(level: str, text: str) -> int:
    """How much a line says of a failure."""
    if (
        _SOURCE.match(text)
        or _ADVICE.match(text)
        or any(words in text for words in (*CHAINED, TRACEBACK))
    ):
        return 0
    weight = sum(weight for weight, sign in _data()["signs"] if sign.search(text))
    return weight + _LEVELS.get(level, 0) - 4 * is_consequence(text) if weight else 0


def _search(text: str, package: str, vllm: bool) -> str:
    """The address of a search for what an exception says last, in the issues of the project whose
    frame raised it, else that ``text`` comes from, else of the server's.
    """
    last = words_of(text.rpartition(": ")[2])
    query = quote_plus(" ".join((last if len(last) > 2 else words_of(text))[:WORDS]))
    projects = _data()["projects"]
    of_frame = [
        name for name, raised in projects if package and raised.search(f"package:{package}")
    ]
    named = of_frame or [name for name, raised in projects if raised.search(text)]
    named += ["vllm-project/vllm"] * vllm
    if not query:
        return ""
    where = f"{named[0]}/issues?" if named else "search?type=issues&"
    return f"https://github.com/{where}q={query}"


def words_of(text: str) -> list[str]:
    """Those that others' logs have, too."""
    words = [word.strip(".:!?-") for word in _OWN.sub(" ", _PLAIN.sub(" ", text)).split()]
    return [word for word in words if len(word) > 1]
