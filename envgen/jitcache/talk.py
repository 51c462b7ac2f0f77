"""Talking to the agent: send the program, read its one JSON document, and put what it says into errors for people."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from envgen.engine.base import MEMORY, Engine
from envgen.errors import EngineError, NotFoundError
from envgen.inside import run
from envgen.inside.jit.module import Holder
from envgen.jitcache.model import Refusal
from envgen.jitcache.place import Place
from envgen.jitcache.query import Query
from envgen.text import visible

TIMEOUT = 900.0  # 160 microseconds a file: a million files are three minutes
ROOT_USER = "0:0"
_FILES = sorted(
    f"jit/{path.stem}" for path in (run.FOLDER / "jit").glob("*.py") if path.stem not in ("__init__", "main")
)
# -I: nothing of the container's own settings or working folder; -S: no site-packages, which halves the start.
AGENT = run.Program((*_FILES, "jit/main"), flags=("-I", "-S"), watch=True, bytes=64 << 20)


def send(engine: Engine, python: str, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the agent at ``place`` and return its document. EngineError when it gave none."""
    if place.container is None:
        execute = run.in_image(engine, place.image, mounts=place.mounts, user=ROOT_USER, hold=True, memory=MEMORY)
    else:
        # Root may delete what any service wrote; with no explicit root the container's own user decides, by its HOME.
        user = ROOT_USER if place.root else ""
        execute = run.in_container(engine, place.container.id, user=user, hold=True)
    answer = run.ask(execute, python, AGENT, request, timeout=TIMEOUT)
    if isinstance(answer, run.Failure):
        said = " / ".join([str(answer), *answer.stack[-3:]])
        raise EngineError(f"{python} in {place.shown} gave no answer: {said}", hint=run.NEEDED)
    return answer


def not_found(data: Refusal, query: Query) -> NotFoundError:
    """The error for names and globs that match nothing, with near matches from what is there."""
    missing = data.missing
    scope = f" in version {query.version}" if query.version else ""
    if query.archs is not None:
        scope += f" for arch {' or '.join(arch or 'none' for arch in query.archs)}"
    message = f"no module matches {', '.join(map(visible, missing))}{scope}" if missing else "the cache is empty"
    return NotFoundError(message, hint=_near(data))


def _near(data: Refusal) -> str:
    missing, names = data.missing, data.names
    if not names:
        return "nothing has been compiled there yet; `envgen cache list` shows all versions and archs"
    near = [match for name in missing for match in difflib.get_close_matches(name, names, 3, 0.5)]
    stems = [name.strip("*?") for name in missing if len(name.strip("*?")) > 2]
    near += [name for stem in stems for name in names if stem in name][:5]
    if near:
        return f"did you mean {', '.join(map(visible, dict.fromkeys(near)))}?"
    return "`envgen cache list` shows what is there"


def what_is_locked(lock: str) -> str:
    """``0.5.3/121a/cached_ops/tmp/page.lock`` → ``page (0.5.3/121a) is being built``."""
    head, _, name = lock.rpartition("/")
    where, _, _ = head.partition("/cached_ops")
    if name == "flashinfer_jit.lock":
        return f"a batch build runs in {where}"
    return f"{visible(name.removesuffix('.lock'))} ({where}) is being built"


def describe_holders(holders: Sequence[Holder]) -> str:
    """``by pid 42 in serve: ninja -v …``; says so when no holder can be seen."""
    if not holders:
        return "by a process that can't be seen from here"
    parts = []
    for holder in holders:
        where = f" in {holder.where}" if holder.where else ""
        if run.MARK in holder.command:
            parts.append(f"by an envgen that is still running there (pid {holder.pid}{where})")
            continue
        parts.append(f"by pid {holder.pid}{where}: {visible(holder.command) or 'unknown command'}")
    return " and ".join(parts)
