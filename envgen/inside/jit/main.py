"""Runs one operation, and always returns one JSON document."""

from __future__ import annotations

from typing import Callable

from envgen.inside.common import Doc
from envgen.inside.jit.clear import run_clear
from envgen.inside.jit.judge import run_baseline, run_list
from envgen.inside.jit.tree import Fault

OPERATIONS: dict[str, Callable[[Doc], Doc]] = {
    "list": run_list,
    "clear": run_clear,
    "baseline": run_baseline,
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
