"""Operation ``list``: every module with what it takes, how old it is, and whether a process builds it now."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Dict

from envgen.inside.jit.choose import asked, choose
from envgen.inside.jit.judge import Judge
from envgen.inside.jit.layout import root_of
from envgen.inside.jit.locks import BATCH
from envgen.inside.jit.module import describe, lock_of
from envgen.inside.jit.package import package_of
from envgen.inside.jit.procs import holders
from envgen.inside.jit.sweep import leftovers
from envgen.inside.jit.tree import LISTED, measure_path, note


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    """List the modules that the request's patterns, version and archs choose (none: all)."""
    root = root_of(request)
    answer: Dict[str, Any] = {"root": root, "exists": True, "modules": [], "others": [], "building": [],
                              "leftovers": {"count": 0, "bytes": 0}, "problems": []}  # fmt: skip
    if not request.get("patterns") and not os.path.exists(root):
        return {**answer, "exists": False}
    cache, patterns = asked(request)
    try:
        judge = Judge(cache, request, package_of(request))
        modules: list[Dict[str, Any]] = []
        building: list[Dict[str, Any]] = []
        for shelf, entries in choose(cache, patterns, not patterns).chosen:
            left = len(modules) + len(entries) - LISTED
            if left > 0:
                note(cache.problems, shelf.shown + ": " + str(left) + " more modules; name those that you want")
            for entry in entries[: LISTED - len(modules)]:
                module = describe(shelf, entry, cache.problems)
                if module is not None:
                    verdict = judge.judge(shelf, module)  # its reasons stay behind: `why` tells them
                    module.state, module.guess = verdict.state, verdict.guess
                    module.causes = sorted({str(one["kind"]) for one in verdict.reasons})
                    modules.append(asdict(module))
            locked, lock = lock_of(shelf, BATCH, cache.problems)
            if locked:
                building.append({"version": shelf.version, "arch": shelf.arch, "locked": locked, "lock": lock})
        held = [one for one in modules + building if one["locked"]]
        known = holders(sorted({tuple(one["lock"]) for one in held}))
        for one in held:
            one["holders"] = known[tuple(one["lock"])]
        answer.update(modules=modules, building=building)
        if not patterns and not request.get("version") and request.get("archs") is None:
            measured = {name: measure_path(name, cache.fd) for name in cache.beside}
            answer["others"] = [{"name": name, "bytes": one.bytes, "files": one.files}
                                for name, one in measured.items() if one is not None]  # fmt: skip
        answer.update(leftovers=leftovers(cache.fd), problems=cache.problems)
        return answer
    finally:
        cache.close()
