"""One request in, one JSON document out, whatever happens."""

from __future__ import annotations

from envgen.inside.jit.fault import Fault


def answer(request: dict[str, object]) -> dict[str, object]:
    """Run one operation. Answers ``{"ok": true, "result": ...}`` or ``{"ok": false, "kind": ..., "message": ...}``."""
    try:
        operation = request.get("operation")
        if operation == "list":
            from envgen.inside.jit.listing import run
        elif operation == "clear":
            from envgen.inside.jit.clear import run
        elif operation == "look":
            from envgen.inside.jit.procs import look as run
        elif operation == "why":
            from envgen.inside.jit.why import run
        elif operation == "audit":
            from envgen.inside.jit.audit import run
        elif operation == "save":
            from envgen.inside.jit.archive import save as run
        elif operation == "load":
            from envgen.inside.jit.archive import load as run
        elif operation == "spaces":
            from envgen.inside.jit.spaces import run
        elif operation == "sweep":
            from envgen.inside.jit.sweep import run
        elif operation == "kinds":
            from envgen.inside.jit.kinds import run
        elif operation == "used":
            from envgen.inside.jit.used import run
        elif operation == "baseline":
            from envgen.inside.jit.why import record as run
        else:
            raise Fault("failed", "unknown operation " + repr(operation))
        return {"ok": True, "result": run(request)}
    except Fault as fault:
        return {"ok": False, "kind": fault.kind, "message": fault.message, "data": fault.data}
    except BaseException as error:  # the host reads JSON, never a traceback
        return {"ok": False, "kind": "failed", "message": type(error).__name__ + ": " + str(error), "data": {}}
