"""One request in, one JSON document out, whatever happens."""

from __future__ import annotations

import json
import sys

from envgen.jitcache.agent.fault import Fault


def answer(request: dict[str, object]) -> dict[str, object]:
    """Run one operation. Answers ``{"ok": true, "result": ...}`` or ``{"ok": false, "kind": ..., "message": ...}``."""
    try:
        operation = request.get("operation")
        if operation == "list":
            from envgen.jitcache.agent.listing import run
        elif operation == "clear":
            from envgen.jitcache.agent.clear import run
        elif operation == "look":
            from envgen.jitcache.agent.look import run
        else:
            raise Fault("failed", "unknown operation " + repr(operation))
        return {"ok": True, "result": run(request)}
    except Fault as fault:
        return {"ok": False, "kind": fault.kind, "message": fault.message, "data": fault.data}
    except RecursionError:
        return {"ok": False, "kind": "failed", "message": "folders are nested too deeply", "data": {}}
    except BaseException as error:  # the host reads JSON, never a traceback
        return {"ok": False, "kind": "failed", "message": type(error).__name__ + ": " + str(error), "data": {}}


def main(request: str) -> None:
    """Answer the JSON text ``request`` on stdout. ASCII only: file names may hold any byte."""
    try:
        parsed = json.loads(request)
    except ValueError as error:
        parsed = {"operation": "unreadable request: " + str(error)}
    sys.stdout.write(json.dumps(answer(parsed)) + "\n")
    sys.stdout.flush()
