"""Operation ``spaces``: how large each namespace is and when it was last used; and removing folders of some."""

from __future__ import annotations

from typing import Any, Dict

from envgen.inside.jit.names import check_name
from envgen.inside.jit.sweep import discard
from envgen.inside.jit.tree import Measure, measure, opened


def run(request: Dict[str, Any]) -> Dict[str, Any]:
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
