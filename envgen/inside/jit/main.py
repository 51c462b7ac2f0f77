"""One request in, one JSON document out, whatever happens."""

from __future__ import annotations

from typing import Callable, Dict

from envgen.inside.jit import archive, audit, clear, listing, procs, record, spaces, sweep, used
from envgen.inside.jit.fault import Fault

OPERATIONS: Dict[str, Callable[[Dict[str, object]], Dict[str, object]]] = {
    "list": listing.run,
    "clear": clear.run,
    "look": procs.look,
    "baseline": record.run,
    "audit": audit.run,
    "save": archive.save,
    "load": archive.load,
    "spaces": spaces.run,
    "sweep": sweep.run,
    "used": used.run,
}


def answer(request: dict[str, object]) -> dict[str, object]:
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
