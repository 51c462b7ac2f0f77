"""Operation ``used``: the names of all modules that were ever compiled or loaded here, also of those that are gone.

FlashInfer keeps three records: a module's folder; its lock, which each load opens, too (a clear leaves it, filelock
3.20.4 to 3.29 doesn't); and ``flashinfer_jit.log``, where 0.7.2 names what it begins to build.
"""

from __future__ import annotations

import os
import re

from envgen.inside.jit.choose import asked
from envgen.inside.jit.layout import entries_of
from envgen.inside.jit.locks import BATCH
from envgen.inside.jit.tree import GONE, note, opened, read_file, reason

# In a log: what 0.7.2 prints; a path in the cache, as ninja prints it from 0.6.1 on (FLASHINFER_JIT_VERBOSE, a failed
# build); an output of ninja up to 0.6.0.
NAME = r"(\w[\w.+-]*)"
NAMED = re.compile(rf"Building JIT module {NAME};|/cached_ops/{NAME}/| -o {NAME}/[^/\s]+\.(?:o|so)(?=\s|$)")


def named_in(text: str) -> set[str]:
    """The modules that a log names."""
    return {next(filter(None, found.groups())) for found in NAMED.finditer(text)} - {"tmp"}


def run(request: dict[str, object]) -> dict[str, object]:
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
