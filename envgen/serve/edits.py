"""The installed packages of a container that somebody changed after it was made.

A restart keeps such changes, and so does `up`, since no setting differs: only a new container is like the image. A
running container is asked from inside, which takes a second; `docker diff` knows more and takes much longer, so it is
asked where a start has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envgen.binding import ShapeError, bind
from envgen.engine.client import Engine
from envgen.engine.values import ChangedPath, Container
from envgen.errors import EngineError
from envgen.inside import run
from envgen.inside.edits import CODE
from envgen.text import counted, instant

PROGRAM = run.Program("edits")
TIMEOUT = 10  # seconds
SOME = 3  # files that are named
SITES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Edits:
    """Code of installed packages that is not the image's: how many files, and some of them, below site-packages."""

    count: int = 0
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`transformers/__init__.py and 3 more`."""
        more = self.count - len(self.files[:SOME])
        return ", ".join(self.files[:SOME]) + (f" and {more} more" if more > 0 else "")

    @property
    def were_changed(self) -> str:
        """`2 files of installed packages were changed in the container`."""
        return counted(self.count, "file of an installed package was", "files of installed packages were") + (
            " changed in the container"
        )


def edits_inside(engine: Engine, container: Container, python: str) -> Edits:
    """The edits that a running container has; none where it can't be asked."""
    if container.state != "running":
        return Edits()
    try:
        # To the part of a second: an edit may follow at once. Files of the image are older, its layers come first.
        since = float(instant(str((engine.inspect(container.id) or {}).get("Created", ""))))
        execute = run.in_container(engine, container.id)
        answer = run.ask(execute, python, PROGRAM, {"since": since}, timeout=TIMEOUT)
        return Edits() if isinstance(answer, run.NoAnswer) else bind(Edits, answer)
    except (EngineError, ShapeError, ValueError):
        return Edits()


def edits_by_diff(engine: Engine, container: Container) -> Edits:
    """The edits by the engine's own comparison, of a container that may have ended; none without an answer."""
    try:
        return edits_of(engine.changes(container.id))
    except EngineError:
        return Edits()


def edits_of(changes: Iterable[ChangedPath]) -> Edits:
    """The edits among all changes of a container."""
    found = []
    for one in changes:
        site = next((site for site in SITES if site in one.path), "")
        file = one.path.partition(site)[2] if site else ""
        if file and "__pycache__/" not in file and CODE.fullmatch(file.rpartition("/")[2]):
            found.append(file)
    return Edits(len(found), tuple(sorted(found)))
