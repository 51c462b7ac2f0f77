"""Steps that the engine's build cache holds twice, since `--no-cache` ran them again: the newer ones go.

Docker's classic store keeps one layer of both. An engine that was restarted since may build the next step on the other
one, and then compares instead of taking what the step wrote: the layer comes out in another order, and the image with
another ID (seen on Docker 28.5; docs/reproducible.md). The older record answers the same cache lookups.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from envgen.engine.docker import open_api
from envgen.errors import EngineError

OURS = "/run/envgen/"  # stands in the text of every step that envgen renders
# Ends each step of the image itself. Its size says nothing: the engine counts a layer otherwise than a mere record. One
# that goes by mistake (the same words, but another wheel was installed) costs seconds to make again; a wheel, hours.
IMAGE_STEP = "/run/envgen/normalise "


@dataclass(frozen=True)
class Kept:
    """One record of the build cache. ``made``: seconds as text, and nanoseconds."""

    id: str
    parents: tuple[str, ...]
    text: str
    size: int
    made: tuple[str, str]


def forget(since: float) -> int:
    """Remove those made since then (seconds since 1970), the last ones first; how many went.

    What a build uses or others are based on stays.
    """
    begin = datetime.fromtimestamp(since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    gone = 0
    with contextlib.suppress(EngineError, OSError):
        api, _ = open_api()
        rows = api.request("GET", "/system/df", {"type": "build-cache"}).check("the build cache")
        for record in reversed(repeated(records_of(rows))):
            if record.made[0] < begin:
                continue
            filters = json.dumps({"id": {record.id: True}})
            told = api.request("POST", "/build/prune", {"all": "1", "filters": filters}).check("the build cache")
            gone += len((told or {}).get("CachesDeleted") or ())
    return gone


def records_of(document: Any) -> list[Kept]:
    """The records of steps in the engine's answer; what has another shape is left out."""
    rows = document.get("BuildCache") if isinstance(document, Mapping) else None
    found = []
    for row in rows or ():
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            # Docker 28 has a blank in front of one name (moby's json tag).
            parents = tuple(row.get("Parents") or row.get(" Parents") or ())
            second, _, rest = str(row["CreatedAt"]).removesuffix("Z").partition(".")
            if row["Type"] == "regular":
                made = second, rest.ljust(9, "0")
                found.append(Kept(str(row["ID"]), parents, str(row["Description"]), int(row["Size"]), made))
    return found


def repeated(records: Iterable[Kept]) -> list[Kept]:
    """Our steps, and what stands on them, that do what an older one does on the same step below; oldest first."""
    first: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    found = []
    for record in sorted(records, key=lambda record: record.made):
        size = 0 if IMAGE_STEP in record.text else record.size
        key = (tuple(same.get(parent, parent) for parent in record.parents), record.text, size)
        ours = OURS in record.text or any(parent in same for parent in record.parents)
        if first.setdefault(key, record.id) != record.id and ours:
            same[record.id] = first[key]
            found.append(record)
    return found
