"""Packs the agent's files and a request into one program for any Python from 3.8: ``python3 -I -S -c STARTER``."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any

from envgen.inside.run import text_of

_PREFIX = "envgen.inside.jit"
_COMMON = ("fault", "names", "tree", "layout", "choose", "locks", "procs", "sweep")
_JUDGE = ("arch", "bytesof", "deps", "ninja", "recipe", "baseline", "package", "judge")
# In the order of their imports; only what an operation needs is sent.
PARTS: Mapping[str, tuple[str, ...]] = {
    "list": (*_COMMON, *_JUDGE, "listing", "main"),
    "clear": (*_COMMON, "hold", "ninja", "plan", "clear", "main"),
    "why": (*_COMMON, *_JUDGE, "listing", "main", "why"),
    "baseline": (*_COMMON, *_JUDGE, "listing", "main", "why"),
    "clear by cause": (*_COMMON, "hold", *_JUDGE, "listing", "plan", "causes", "clear", "main"),
    "audit": (*_COMMON, "arch", "package", "fatbin", "audit", "main"),
    "save": (*_COMMON, "hold", "archive", "main"),
    "load": (*_COMMON, "hold", "archive", "main"),
    "spaces": ("fault", "names", "tree", "layout", "spaces", "main"),
    "sweep": (*_COMMON, "main"),
    "kinds": ("fault", "names", "tree", "procs", "kinds", "main"),
    "look": ("fault", "procs", "look", "main"),
}
# `python3 -` would read it line by line through its tokenizer. What follows the program is never sent: see WATCH.
STARTER = "import marshal, sys; data = marshal.load(sys.stdin.buffer); exec(data[0]) # envgen-agent"
MARK = "# envgen-agent"  # in a command line: one of ours, not a compiler
# -I: nothing of the container's own settings or working folder; -S: no site-packages, which halves the start.
FLAGS = ("-I", "-S", "-c", STARTER)
_FORMAT = 2  # of marshal: plain values in it are read by every Python 3

# envgen keeps stdin open while it waits. Its end means that envgen was killed: nobody waits for the answer, and the
# next envgen must not find this one at work. What an operation leaves half done the next one finishes.
WATCH = """\
import _thread, os
def watch():
    while os.read(0, 4096):
        pass
    os._exit(1)
_thread.start_new_thread(watch, ())
"""
_HEAD = f"""\
{WATCH}
_, parts, request = data
for name in ("envgen", "envgen.inside", {_PREFIX!r}):
    sys.modules[name] = type(sys)(name)
for name, source in parts:
    module = sys.modules[name] = type(sys)(name)
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
sys.modules[{_PREFIX!r} + ".main"].main(request)
"""


def program(request: Mapping[str, Any]) -> bytes:
    """What to send on stdin to have ``request`` answered."""
    operation = str(request["operation"])
    parts = tuple(_part(name) for name in PARTS["clear by cause" if "causes" in request else operation])
    return marshal.dumps((_HEAD, parts, dict(request)), _FORMAT)


def _part(name: str) -> tuple[str, str]:
    return f"{_PREFIX}.{name}", text_of(f"jit/{name}")
