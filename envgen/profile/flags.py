"""The words of a flag in `args`: what vLLM's own parser reads back as the value in the file.

A profile is rendered without asking a release, so its parser's exceptions stand in names.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from envgen.profile.names import NAMES
from envgen.text import whole_number

ArgValue = bool | str | tuple[str, ...]  # shape.py knows this alias by its name

VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*[^}]*\}|^\$[A-Za-z_]\w*$")  # what Compose would fill in
WITHOUT_NO = frozenset(NAMES["flags_without_no"])
_REPEATED = ("middleware",)  # once for each value
_JSON = ("allowed-headers", "allowed-methods", "allowed-origins")  # a list in JSON
_JOINED = ("device-ids",)  # a list with commas
# The flags whose product is the number of ranks.
RANKS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_POOLED = ("embed", "embedding", "classify", "score", "reward")
SHORT: Mapping[str, str] = NAMES["short_flags"]
ABBREVIATED: Mapping[str, str] = NAMES["abbreviated_flags"]


def plain_name(name: str) -> str:
    """A flag as vLLM names it: whole, and with dashes up to the first dot."""
    first, dot, below = name.partition(".")
    first = first.replace("_", "-")
    for flag, least in ABBREVIATED.items():
        if first.startswith(least) and flag.startswith(first):
            first = flag
    return first + dot + below


def words_of(name: str, value: ArgValue, *, of_vllm: bool) -> list[str]:
    """The words of one flag. ``of_vllm``: the command is vLLM's, whose false is --no-FLAG."""
    flag = f"--{name}" if len(name) > 1 else f"-{name}"
    plain = plain_name(name)
    special = plain if of_vllm else ""
    if "." in plain or special in _JSON:  # vLLM reads the one word after it as JSON
        value = _json(value)
    elif special in _JOINED and isinstance(value, tuple):
        value = ",".join(value)
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{name}"] if of_vllm and plain not in WITHOUT_NO else []
    values = value if isinstance(value, tuple) else (value,)
    if special in _REPEATED:
        return [word for one in values for word in _one(flag, one)]
    return _one(flag, values[0]) if len(values) == 1 else [flag, *values]


def _one(flag: str, value: str) -> list[str]:
    """A flag with one value. Parsers take a word that begins with a dash for the next flag."""
    if value.startswith("-") and flag.startswith("--"):
        return [f"{flag}={value}"]
    return [flag, value]


@dataclass(frozen=True)
class GivenFlag:
    """A flag in the words of a command."""

    word: str  # as it was typed; "" for a word that belongs to no flag
    name: str = ""  # the long name; "" where it is not known
    values: tuple[str, ...] = ()

    @property
    def value(self) -> ArgValue:
        """Its one value, its values, or True."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values or True


def long_name(word: str) -> str:
    """The name of the flag that a word begins; "" if it begins none."""
    flag = word.partition("=")[0]
    if flag.startswith("--"):
        return plain_name(flag[2:])
    if not flag.startswith("-"):
        return ""
    first, dot, below = flag[1:].partition(".")
    return SHORT[first] + dot + below if first in SHORT else ""


def parsed(words: Sequence[str]) -> list[GivenFlag]:
    """The flags of a command in their order, each with the words up to the next one."""
    flags = []
    for word in words:
        level = re.fullmatch(r"-O([0-3])", word)  # -O2
        if level:
            flags.append(GivenFlag(word, long_name("-O"), (level[1],)))
        elif re.match(r"-{1,2}[A-Za-z]", word):
            _, equals, value = word.partition("=")
            flags.append(GivenFlag(word, long_name(word), (value,) if equals else ()))
        elif flags and flags[-1].word and "=" not in flags[-1].word:
            flags[-1] = replace(flags[-1], values=(*flags[-1].values, word))
        else:
            flags.append(GivenFlag("", values=(word,)))
    return flags


def in_words(words: Sequence[str], name: str) -> ArgValue | None:
    """The value of a flag in the words of a command, where the last one counts, as in argparse;
    None where it is not there.
    """
    given = None
    for flag in parsed(words):
        if flag.name == name:
            given = flag.value
    return given


def whole_ranks(flags: Mapping[str, object]) -> int:
    """The number of vLLM's ranks by its flags, by their long names; 0 where they can't be read."""
    ranks = 1
    for name in RANKS:
        size = flags.get(name) or "1"
        number = whole_number(size) if isinstance(size, str) else None
        ranks *= number or 0
    return ranks


def takes_no_prompt(flag: Callable[[str], object]) -> bool:
    """Whether the flags make it a model that embeds, ranks or classifies. ``flag``: the value of a
    flag by its name.
    """
    return flag("runner") == "pooling" or flag("convert") in _POOLED or flag("task") in _POOLED


def _json(value: ArgValue) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_item, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _item(text: str) -> str:
    """An item as vLLM reads a value: as JSON where it is JSON, else as text."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text
