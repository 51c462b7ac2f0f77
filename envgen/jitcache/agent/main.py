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
        elif operation == "why":
            from envgen.jitcache.agent.why import run
        elif operation == "audit":
            from envgen.jitcache.agent.audit import run
        elif operation == "save":
            from envgen.jitcache.agent.save import run
        elif operation == "load":
            from envgen.jitcache.agent.load import run
        elif operation == "spaces":
            from envgen.jitcache.agent.spaces import run
        elif operation == "sweep":
            from envgen.jitcache.agent.sweep import run
        elif operation == "kinds":
            from envgen.jitcache.agent.kinds import run
        elif operation == "baseline":
            from envgen.jitcache.agent.why import record as run
        else:
            raise Fault("failed", "unknown operation " + repr(operation))
        return {"ok": True, "result": run(request)}
    except Fault as fault:
        return {"ok": False, "kind": fault.kind, "message": fault.message, "data": fault.data}
    except BaseException as error:  # the host reads JSON, never a traceback
        return {"ok": False, "kind": "failed", "message": type(error).__name__ + ": " + str(error), "data": {}}


def main(request: dict[str, object]) -> None:
    """Answer the request as JSON on stdout. ASCII only: file names may hold any byte."""
    sys.stdout.write(json.dumps(answer(request)) + "\n")
    sys.stdout.flush()
