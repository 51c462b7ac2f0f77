"""Runs one operation, and always returns one JSON document."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict

from envgen.inside.jit.clear import run_clear
from envgen.inside.jit.judge import run_baseline, run_list
from envgen.inside.jit.layout import asked, check_name, modules_of, open_cache, root_of
from envgen.inside.jit.locks import BATCH, discard, run_look, sweep
from envgen.inside.jit.shapes import Used, document
from envgen.inside.jit.tree import Fault, Measure, measure, noting, opened, read_file

Doc = Dict[str, Any]


def run_sweep(request: Doc) -> Doc:
    """Operation ``sweep``: delete (``dry_run``: measure) what killed runs left in the cache ``root``."""
    errors: list[str] = []
    cache = open_cache(root_of(request))
    if cache is None:
        return {"count": 0, "bytes": 0, "errors": errors}
    with cache:
        return {**document(sweep(cache.fd, errors, dry=bool(request.get("dry_run")))), "errors": errors}


def run_spaces(request: Doc) -> Doc:
    """Operation ``spaces``: the size and the last use of the namespaces ``roots``.

    ``remove``: names below ``parent`` to remove. The last use is the newest time of any file: FlashInfer opens the lock
    of each module that it loads, and writes its log, so a use without a compilation counts, too.
    """
    found = []
    for root in request.get("roots") or ():
        with opened(root) as fd:
            total = measure(fd, Measure())
        found.append({"bytes": total.bytes, "used": total.newest})
    errors: list[str] = []
    names = list(request.get("remove") or ())
    for name in names:
        check_name(name, "namespace")
    if names:
        with opened(request["parent"]) as parent:
            discard(names, parent, errors)
    return {"spaces": found, "errors": errors}


# In a log: the message of 0.7.2; a path in the cache, which ninja prints from 0.6.1 on (FLASHINFER_JIT_VERBOSE, a
# failed build); an output of ninja up to 0.6.0.
NAME = r"(\w[\w.+-]*)"
NAMED = re.compile(rf"Building JIT module {NAME};|/cached_ops/{NAME}/| -o {NAME}/[^/\s]+\.(?:o|so)(?=\s|$)")


def named_in(text: str) -> set[str]:
    """The modules in a log."""
    return {next(filter(None, found.groups())) for found in NAMED.finditer(text)} - {"tmp"}


def run_used(request: Doc) -> Doc:
    """Operation ``used``: all modules that were ever compiled or loaded here, by their folders, their locks (which stay
    after a clear, except with filelock 3.20.4 to 3.29), and the builds in 0.7.2's ``flashinfer_jit.log``."""
    with asked(request) as cache:
        names: set[str] = set()
        for shelf, modules in modules_of(cache):
            names |= set(modules)
            with noting(cache.problems, shelf.shown):
                with opened("tmp", shelf.fd) as fd:
                    names |= {name[:-5] for name in os.listdir(fd) if name.endswith(".lock") and name != BATCH}
                names |= named_in(read_file("flashinfer_jit.log", shelf.base).decode("utf-8", "replace"))
        return document(Used(tuple(sorted(name for name in names if re.fullmatch(NAME, name))), tuple(cache.problems)))


OPERATIONS: Dict[str, Callable[[Doc], Doc]] = {
    "list": run_list,
    "clear": run_clear,
    "look": run_look,
    "baseline": run_baseline,
    "spaces": run_spaces,
    "sweep": run_sweep,
    "used": run_used,
}


def answer(request: Doc) -> Doc:
    """Run one operation. Answers ``{"ok": true, "result": ...}`` or ``{"ok": false, "kind": ..., "message": ...}``."""
    try:
        operation = OPERATIONS.get(str(request.get("operation")))
        if operation is None:
            raise Fault("failed", "unknown operation " + repr(request.get("operation")))
        return {"ok": True, "result": operation(request)}
    except Fault as fault:
        return {"ok": False, "kind": fault.kind, "message": fault.message, "data": fault.data}
    except BaseException as error:  # the host reads JSON, never a traceback
        return {"ok": False, "kind": "failed", "message": type(error).__name__ + ": " + str(error), "data": {}}
