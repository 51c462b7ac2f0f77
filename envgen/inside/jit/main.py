"""One request in, one JSON document out, whatever happens."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict

from envgen.inside.jit.archive import load, save
from envgen.inside.jit.clear import run_clear
from envgen.inside.jit.judge import run_baseline, run_list
from envgen.inside.jit.layout import asked, check_name, entries_of
from envgen.inside.jit.libraries import run_audit
from envgen.inside.jit.locks import BATCH, discard, look, run_sweep
from envgen.inside.jit.tree import GONE, Fault, Measure, measure, note, opened, read_file, reason

# Operation ``spaces``: how large each namespace is and when it was last used; and removing folders of some.


def run_spaces(request: Dict[str, Any]) -> Dict[str, Any]:
    """``roots``: paths of namespaces. ``remove``: names below ``parent`` that go; they are measured no more.

    Last used = the youngest time of any file: FlashInfer opens the lock of each module that it loads, and writes its
    log, so a use leaves its time there even when nothing is compiled.
    """
    found = []
    for root in request.get("roots") or ():
        with opened(root) as fd:
            total = measure(fd, Measure())
        found.append({"bytes": total.bytes, "files": total.files, "used": total.newest,
                      "libraries": len(total.libraries)})  # fmt: skip
    errors: list[str] = []
    names = list(request.get("remove") or ())
    for name in names:
        check_name(name, "namespace")
    if names:
        with opened(request["parent"]) as parent:
            discard(names, parent, errors)
    return {"spaces": found, "errors": errors}


# Operation ``used``: the names of all modules that were ever compiled or loaded here, also of those that are gone.
#
# FlashInfer keeps three records: a module's folder; its lock, which each load opens, too (a clear leaves it, filelock
# 3.20.4 to 3.29 doesn't); and ``flashinfer_jit.log``, where 0.7.2 names what it begins to build.

# In a log: what 0.7.2 prints; a path in the cache, as ninja prints it from 0.6.1 on (FLASHINFER_JIT_VERBOSE, a failed
# build); an output of ninja up to 0.6.0.
NAME = r"(\w[\w.+-]*)"
NAMED = re.compile(rf"Building JIT module {NAME};|/cached_ops/{NAME}/| -o {NAME}/[^/\s]+\.(?:o|so)(?=\s|$)")


def named_in(text: str) -> set[str]:
    """The modules that a log names."""
    return {next(filter(None, found.groups())) for found in NAMED.finditer(text)} - {"tmp"}


def run_used(request: dict[str, object]) -> dict[str, object]:
    """All names in the cache, whatever version and arch they are of."""
    cache, _ = asked(request)
    try:
        names: set[str] = set()
        for shelf in cache.shelves:
            names |= {entry.name for entry in entries_of(shelf, cache.problems) if entry.kind == "folder"}
            try:
                with opened("tmp", shelf.fd) as fd:
                    names |= {name[:-5] for name in os.listdir(fd) if name.endswith(".lock") and name != BATCH}
                names |= named_in(read_file("flashinfer_jit.log", shelf.base).decode("utf-8", "replace"))
            except OSError as error:
                if error.errno not in GONE:
                    note(cache.problems, shelf.shown + ": " + reason(error))
        return {"names": sorted(name for name in names if re.fullmatch(NAME, name)), "problems": cache.problems}
    finally:
        cache.close()


OPERATIONS: Dict[str, Callable[[Dict[str, object]], Dict[str, object]]] = {
    "list": run_list,
    "clear": run_clear,
    "look": look,
    "baseline": run_baseline,
    "audit": run_audit,
    "save": save,
    "load": load,
    "spaces": run_spaces,
    "sweep": run_sweep,
    "used": run_used,
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
