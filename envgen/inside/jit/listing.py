"""Operation ``list``: every module with what it takes, how old it is, its state and the evidence for that."""

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
from envgen.inside.jit.tree import LISTED, note


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    """List the modules that the request's patterns, version and archs choose (none: all).

    ``thorough``: read every byte that they were compiled from, and name the files that speak against them.
    """
    root, thorough = root_of(request), bool(request.get("thorough"))
    answer: Dict[str, Any] = {"root": root, "exists": True, "modules": [], "building": [], "package": {},
                              "leftovers": {"count": 0, "bytes": 0}, "problems": []}  # fmt: skip
    if not request.get("patterns") and not os.path.exists(root):
        return {**answer, "exists": False}
    cache, patterns = asked(request)
    try:
        package = package_of(request)
        judge = Judge(cache, request, package, thorough=thorough)
        modules: list[Dict[str, Any]] = []
        building: list[Dict[str, Any]] = []
        for choice in choose(cache, patterns, not patterns):
            shelf, entries = choice.shelf, choice.entries
            left = len(modules) + len(entries) - LISTED
            if left > 0:
                note(cache.problems, shelf.shown + ": " + str(left) + " more modules; name those that you want")
            for entry in entries[: LISTED - len(modules)]:
                module = describe(shelf, entry, cache.problems)
                if module is not None:
                    judge.judge(shelf, module)
                    for reason in () if thorough else module.reasons:  # thousands of modules have a million files
                        reason.files, reason.more = [], reason.more + len(reason.files)
                    modules.append(asdict(module))
            locked, lock = lock_of(shelf, BATCH, cache.problems)
            if locked:
                building.append({"version": shelf.version, "arch": shelf.arch, "locked": locked, "lock": lock})
        held = [one for one in modules + building if one["locked"]]
        known = holders(sorted({tuple(one["lock"]) for one in held}))
        for one in held:
            one["holders"] = known[tuple(one["lock"])]
        answer.update(modules=modules, building=building, leftovers=leftovers(cache.fd), problems=cache.problems,
                      package={"root": package.root, "version": package.version})  # fmt: skip
        return answer
    finally:
        cache.close()
