"""Which modules a request means: exact names, globs, everything. Names that could lead elsewhere are refused first."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Dict, List

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Cache, Entry, Shelf, entries_of, open_cache, root_of
from envgen.inside.jit.names import check_request
from envgen.inside.jit.tree import LISTED


@dataclass
class Choice:
    """What was found in a shelf: the chosen entries, and all others (for generated files that are shared)."""

    shelf: Shelf
    entries: List[Entry]
    others: List[Entry]


def asked(request: Dict[str, Any]) -> tuple[Cache, list[str]]:
    """The cache, opened as far as the request's version and archs go, and its patterns; Fault where there is none."""
    patterns, archs, version = request.get("patterns") or [], request.get("archs"), request.get("version") or ""
    check_request(patterns, version, archs)
    root = root_of(request)
    cache = open_cache(root, version, archs)
    if cache is None:
        raise Fault("not_found", "there is no cache at " + root, missing=patterns)
    return cache, patterns


def survey(cache: Cache) -> list[tuple[Shelf, list[Entry]]]:
    """What is in each shelf."""
    return [(shelf, entries_of(shelf, cache.problems)) for shelf in cache.shelves]


def choose(cache: Cache, patterns: list[str], everything: bool) -> list[Choice]:
    """Resolve the patterns over all shelves. A name that exists is taken as it is, even with ``[`` or ``*`` in it.

    Raises ``not_found`` when any pattern matches nothing: half of what was asked for is not what was asked for.
    """
    found = survey(cache)
    folders = {entry.name for _, entries in found for entry in entries if entry.kind != "file"}
    files = {entry.name for _, entries in found for entry in entries if entry.kind == "file"}
    wanted: set[str] = set(folders) if everything else set()
    missing = []
    for pattern in patterns:
        if pattern in files and pattern not in folders:
            raise Fault("refused", repr(pattern) + " is a file in cached_ops, not a module")
        matches = {pattern} & folders or {name for name in folders if fnmatchcase(name, pattern)}
        missing += [] if matches else [pattern]
        wanted |= matches
    if missing:
        raise Fault("not_found", "no module " + ", ".join(map(repr, missing)), missing=missing,
                    names=sorted(folders)[:LISTED])  # fmt: skip
    choices = []
    for shelf, entries in found:
        named = [entry for entry in entries if entry.kind != "file"]
        chosen = [entry for entry in named if entry.name in wanted]
        if chosen:
            choices.append(Choice(shelf, chosen, [entry for entry in named if entry.name not in wanted]))
    return choices
