"""Joins the agent's files into one text that any Python from 3.8 runs: ``python3 -I -S -c STARTER`` < text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "agent"
_PREFIX = "envgen.jitcache.agent"
# In the order of their imports. Only what an operation needs is sent: compiling it takes a tenth of a small clear.
PARTS: Mapping[str, tuple[str, ...]] = {
    "list": ("fault", "names", "tree", "layout", "choose", "locks", "procs", "sweep", "listing", "main"),
    "clear": (
        "fault",
        "names",
        "tree",
        "layout",
        "choose",
        "locks",
        "procs",
        "sweep",
        "ninja",
        "plan",
        "clear",
        "main",
    ),
    "look": ("fault", "procs", "look", "main"),
}
# -c reads the whole text at once; `python3 -` would read it line by line through its tokenizer.
STARTER = "import sys; exec(compile(sys.stdin.buffer.read(), 'envgen-agent', 'exec'))"
# -I: nothing of the container's own settings or working folder; -S: no site-packages, which halves the start.
FLAGS = ("-I", "-S", "-c", STARTER)

_HEAD = f"""\
import sys
def _load(name, text):
    module = type(sys)(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
for _name in ("envgen", "envgen.jitcache", {_PREFIX!r}):
    sys.modules[_name] = type(sys)(_name)
"""


@cache
def _parts(operation: str) -> str:
    texts = [_HEAD]
    for name in PARTS[operation]:
        source = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
        texts.append(f"_load({f'{_PREFIX}.{name}'!r}, {source!r})\n")
    return "".join(texts)


def program(request: Mapping[str, Any]) -> bytes:
    """The text to send on stdin. The request travels inside, as JSON in ASCII, so any file name will do."""
    call = f"sys.modules[{f'{_PREFIX}.main'!r}].main({json.dumps(dict(request))!r})\n"
    return (_parts(str(request["operation"])) + call).encode("utf-8")
