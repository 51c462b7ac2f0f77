"""The words of a flag in `args`: what vLLM's own parser reads back as the value in the file.

A profile is rendered without asking a release, so its parser's exceptions stand here: those of
0.14, 0.30 and 0.33 (tests/process/test_flags.py asks them).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from envgen.text import whole_number

ArgValue = bool | str | tuple[str, ...]  # shape.py knows this alias by its name

VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*[^}]*\}|^\$[A-Za-z_]\w*$")  # what Compose would fill in
# They are off unless they are there: vLLM has no --no-FLAG for them.
WITHOUT_NO = frozenset(
    (
        "aggregate-engine-logging",
        "data-parallel-multi-port-external-lb",
        "disable-log-stats",
        "grpc",
        "headless",
        "help",
        "hf-token",
    )
)
_REPEATED = ("middleware",)  # once for each value
_JSON = ("allowed-headers", "allowed-methods", "allowed-origins")  # a list in JSON
_JOINED = ("device-ids",)  # a list with commas
# The flags whose product is the number of ranks.
RANKS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_POOLED = ("embed", "embedding", "classify", "score", "reward")
SHORT = {
    "O": "optimization-level",
    "ac": "attention-config",
    "asc": "api-server-count",
    "cc": "compilation-config",
    "dc": "diffusion-config",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size",
    "dpa": "data-parallel-address",
    "dpb": "data-parallel-backend",
    "dpe": "data-parallel-external-lb",
    "dph": "data-parallel-hybrid-lb",
    "dpl": "data-parallel-size-local",
    "dpm": "data-parallel-multi-port-external-lb",
    "dpn": "data-parallel-rank",
    "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank",
    "ep": "enable-expert-parallel",
    "n": "nnodes",
    "pcp": "prefill-context-parallel-size",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
    "r": "node-rank",
    "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}


def plain_name(name: str) -> str:
    """A flag as vLLM names it: with dashes up to the first dot."""
    first, dot, below = name.partition(".")
    return first.replace("_", "-") + dot + below


def words_of(name: str, value: ArgValue, *, of_vllm: bool) -> list[str]:
    """The words of one flag. ``of_vllm``: the command is vLLM's, whose false is --no-FLAG."""
    flag, plain = f"--{name}" if len(name) > 1 else f"-{name}", plain_name(name)
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
    return [f"{flag}={value}"] if value.startswith("-") and flag.startswith("--") else [flag, value]


def in_words(words: Sequence[str], name: str) -> ArgValue | None:
    """The value of a flag in the words of a command; None where it is not there."""
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if (plain_name(flag[2:]) if flag.startswith("--") else SHORT.get(flag[1:])) == name:
            values = (
                (value,)
                if equals
                else tuple(takewhile(lambda arg: not arg.startswith("-"), words[number + 1 :]))
            )
            return values if len(values) > 1 else values[0] if values else True
    return None


def whole_ranks(flags: Mapping[str, object]) -> int:
    """The number of vLLM's ranks by its flags, by their long names; 0 where they can't be read."""
    sizes = [flags.get(name) or "1" for name in RANKS]
    return math.prod((whole_number(size) if isinstance(size, str) else None) or 0 for size in sizes)


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
