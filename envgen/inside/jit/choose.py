"""Which modules a request means: exact names, globs, everything. Names that could lead elsewhere are refused first."""

from __future__ import annotations

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Cache, Entry, Shelf, entries_of
from envgen.inside.jit.tree import LISTED


class Choice:
    """What was found in every shelf: the chosen entries, and all others (for generated files that are shared)."""

    def __init__(self) -> None:
        self.chosen: list[tuple[Shelf, list[Entry]]] = []
        self.others: dict[int, list[Entry]] = {}


class Survey:
    """What lies in the shelves: entries, and trash of clears that were killed."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.found: list[tuple[Shelf, list[Entry]]] = []
        self.trash: list[tuple[Shelf, str]] = []
        for shelf in cache.shelves:
            entries, trash = entries_of(shelf, cache.problems)
            self.found.append((shelf, entries))
            self.trash += [(shelf, name) for name in trash]


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def choose(survey: Survey, patterns: list[str], everything: bool) -> Choice:
    """Resolve the patterns over all shelves. A name that exists is taken as it is, even with ``[`` or ``*`` in it.

    Raises ``not_found`` when any pattern matches nothing: half of what was asked for is not what was asked for.
    """
    folders = {entry.name for _, entries in survey.found for entry in entries if entry.kind != "file"}
    files = {entry.name for _, entries in survey.found for entry in entries if entry.kind == "file"}
    wanted: set[str] = set(folders) if everything else set()
    missing = []
    for pattern in patterns:
        if pattern in folders:
            wanted.add(pattern)
            continue
        if pattern in files:
            raise Fault("refused", repr(pattern) + " is a file in cached_ops, not a module")
        matches = set()
        if is_glob(pattern):
            from fnmatch import fnmatchcase  # importing it costs more than all else; most clears name their module

            matches = {name for name in folders if fnmatchcase(name, pattern)}
        if not matches:
            missing.append(pattern)
        wanted |= matches
    if missing:
        places = [shelf.prefix for shelf, _ in survey.found][:LISTED]
        raise Fault("not_found", "no module " + ", ".join(map(repr, missing)), missing=missing,
                    names=sorted(folders)[:LISTED], links=survey.cache.links, places=places)  # fmt: skip
    choice = Choice()
    for shelf, entries in survey.found:
        chosen = [entry for entry in entries if entry.name in wanted and entry.kind != "file"]
        if chosen:
            choice.chosen.append((shelf, chosen))
            choice.others[shelf.fd] = [e for e in entries if e.name not in wanted and e.kind != "file"]
    return choice
