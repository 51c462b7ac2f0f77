"""Operation ``baseline``: remember what modules are made of."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict

from envgen.inside.jit import baseline
from envgen.inside.jit.bytesof import Files
from envgen.inside.jit.choose import asked, choose
from envgen.inside.jit.layout import Cache, Shelf, root_of
from envgen.inside.jit.module import lock_of
from envgen.inside.jit.recipe import Reader, Recipe, library_of
from envgen.inside.jit.tree import opened


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    """Record the chosen modules. One whose files changed after it was linked is refused unless ``force``."""
    cache, patterns = asked(request)
    try:
        reader, files = Reader(), Files()
        done = []
        for one in choose(cache, patterns, not patterns):
            for name in (entry.name for entry in one.entries if entry.kind == "folder"):
                outcome = _record(cache, one.shelf, name, reader, files, request)
                done.append({"version": one.shelf.version, "arch": one.shelf.arch, "name": name, **outcome})
        return {"root": root_of(request), "modules": done, "problems": cache.problems}
    finally:
        cache.close()


def _record(
    cache: Cache, shelf: Shelf, name: str, reader: Reader, files: Files, request: Dict[str, Any]
) -> Dict[str, Any]:
    recipe = reader.read(shelf, name)
    refusal, changed = _refusal(recipe, files, bool(request.get("force")), request.get("since") or 0)
    if lock_of(shelf, name + ".lock", cache.problems)[0]:
        refusal = "it is being built"
    if refusal:
        return {"recorded": False, "files": 0, "reason": refusal, "changed": changed[:40]}
    environ = {**(request.get("environ") or {}), **os.environ}
    text = json.dumps(baseline.describe(recipe, files, environ, time.time()))
    with opened(name, shelf.fd) as fd:
        if library_of(name, fd) != recipe.library:
            return {"recorded": False, "files": 0, "reason": "it was built again meanwhile", "changed": []}
    baseline.write(cache, shelf, name, text)
    return {"recorded": True, "files": len(recipe.inputs), "reason": "", "changed": []}


def _refusal(recipe: Recipe, files: Files, force: bool, since: int) -> tuple[str, list[str]]:
    """Why the record would be worth nothing: it must show what the library was made of, not what came later.

    ``since``: when a compilation that we started began, in ns; 0: it isn't known.
    """
    if recipe.library is None:
        return "it has no library yet", []
    if not recipe.inputs or not recipe.recorded:
        return recipe.problem or "ninja's record of what it was compiled from is missing", []
    if force:
        return "", []
    # What changed while the compiler ran may have been read before or after.
    limit = min(since, recipe.library[1]) if since else recipe.library[1]
    changed = []
    for path in recipe.inputs:
        stamp = files.stamp(path)
        made_here = "/generated/" in path and path.startswith(recipe.shelf.root)
        if stamp is None or (stamp[3] >= (recipe.library[1] if made_here else limit)):
            changed.append(path)
    return ("files changed after it was compiled" if changed else ""), changed
