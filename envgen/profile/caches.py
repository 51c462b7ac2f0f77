"""The caches that envgen knows by name, a row each in names.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envgen.profile.names import NAMES


@dataclass(frozen=True)
class KnownCache:
    """A name in `caches` that sets variables; names.yaml says what the fields are."""

    name: str
    path: str
    variables: Mapping[str, str] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    compiles: str = ""
    default: str = ""

    def environment(self, path: str) -> dict[str, str]:
        """The variables of a cache at ``path``."""
        above = {
            name: path.removesuffix(end) or "/"
            for name, end in self.parents.items()
            if path.endswith(end)
        }
        return {**{name: path + below for name, below in self.variables.items()}, **above}

    def line(self, host: str = "") -> str:
        """The line that adds it to a profile. ``host``: the folder on the machine; "": a volume."""
        folder = f", host: {host}" if host else ""
        return f"caches: {{{self.name}: {{path: {self.path}{folder}}}}}"


KNOWN: Mapping[str, KnownCache] = {row["name"]: KnownCache(**row) for row in NAMES["caches"]}
FLASHINFER = KNOWN["flashinfer"]
HUGGINGFACE = KNOWN["huggingface"]
# The variable -> the name of the cache that sets it.
SETS: Mapping[str, str] = {
    name: row.name for row in KNOWN.values() for name in (*row.variables, *row.parents)
}


def environment_of(name: str, path: str) -> dict[str, str]:
    """The variables of the cache ``name`` at ``path``; {} for a name that envgen does not know."""
    return KNOWN[name].environment(path) if name in KNOWN else {}
