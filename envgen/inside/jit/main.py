"""Runs one operation, and always returns one JSON document."""

from __future__ import annotations

from typing import Any, Callable, Dict

from envgen.inside.jit.clear import run_clear
from envgen.inside.jit.judge import run_baseline, run_list
from envgen.inside.jit.locks import run_look
from envgen.inside.jit.tree import Fault, Measure, measure, opened

Doc = Dict[str, Any]


def run_uses(request: Doc) -> Doc:
    """Operation ``uses``: the last use of each cache in ``roots``.

    It is the newest time of any file: FlashInfer opens the lock of each module that it loads, and
    writes its log, so a use without a compilation counts, too.
    """
    times = []
    for root in request.get("roots") or ():
        with opened(root) as fd:
            times.append(measure(fd, Measure()).newest)
    return {"times": times}


OPERATIONS: Dict[str, Callable[[Doc], Doc]] = {
    "list": run_list,
    "clear": run_clear,
    "look": run_look,
    "baseline": run_baseline,
    "uses": run_uses,
}


def answer(request: Doc) -> Doc:
    """Run one operation. Answers ``{"ok": true, "result": ...}`` or ``{"ok": false, "kind": ...,
    "message": ...}``.
    """
    try:
        operation = OPERATIONS.get(str(request.get("operation")))
        if operation is None:
            raise Fault("failed", f"unknown operation {request.get('operation')!r}")
        return {"ok": True, "result": operation(request)}
    except Fault as fault:
        return {"ok": False, "kind": fault.kind, "message": fault.message, "data": fault.data}
    except BaseException as error:  # the host reads JSON, never a traceback
        return {
            "ok": False,
            "kind": "failed",
            "message": f"{type(error).__name__}: {error}",
            "data": {},
        }
