"""A folder of one machine onto another's: their containers send it over the cable, from disk to disk."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from envgen.engine.client import Engine
from envgen.engine.owner import host_user
from envgen.engine.process import in_background
from envgen.engine.values import MISSHAPEN, ExecResult, Mount
from envgen.errors import EngineError
from envgen.inside import run
from envgen.profile.model import Machine, Profile

PROGRAM = run.Program(("node",), watch=True)
LISTENS = "envgen-listens"
PROGRESS = "envgen-progress "
MEETING = 60.0  # seconds that the two ends wait for each other
LONGEST = 24 * 3600.0


@dataclass(frozen=True)
class End:
    """One machine."""

    node: str
    machine: Machine
    engine: Engine


@dataclass(frozen=True)
class Folder:
    """What is copied. ``kind``: tree, mirror, checkout, model; which ``model``: see ``inside/node.py``."""

    what: str
    kind: str
    source: Mount
    target: Mount
    model: Mapping[str, str] | None = None


def copy(
    profile: Profile,
    folder: Folder,
    source: End,
    target: End,
    on_bytes: Callable[[int], None],
    *,
    dry_run: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """The answer of the end that receives, or {"absent": True}: there is nothing to send. EngineError."""
    common = {
        "kind": folder.kind, "model": dict(folder.model or {}), "token": secrets.token_hex(16), "seconds": MEETING,
        "address": source.machine.address, "port": random.randrange(40000, 60000),
    }  # fmt: skip
    listens = Event()

    def heard(line: str) -> None:
        if line.startswith(LISTENS):
            listens.set()
        elif line.startswith(PROGRESS) and line[len(PROGRESS) :].isdigit():
            on_bytes(int(line[len(PROGRESS) :]))

    def ask(end: End, mount: Mount, request: Mapping[str, Any]) -> dict[str, Any]:
        def execute(argv: Sequence[str], stdin: bytes, seconds: float) -> ExecResult:
            return end.engine.run_once(
                profile.image_name, argv, stdin=stdin, mounts=[mount], user="0:0", network="host", timeout=seconds,
                hold=True, on_line=heard,
            )  # fmt: skip

        document = {**common, **request, "folder": mount.target}
        try:
            answer = run.ask(execute, profile.base.python, PROGRAM, document, timeout=LONGEST)
        except EngineError as error:
            raise EngineError(f"{end.node}: {error.problems[0].message}", hint=error.problems[0].hint) from None
        if isinstance(answer, run.Failure):
            raise EngineError(f"{end.node}: {folder.what}: {answer}")
        return answer

    sending = in_background(lambda: ask(source, folder.source, {"ask": "send"}))
    while not listens.wait(0.1):
        if sending.done():
            answer = sending.result()
            if "error" in answer:
                raise EngineError(f"{source.node}: {source.machine.address}: {answer['error']}")
            return answer
    found = ask(target, folder.target, {
        "ask": "receive", "source": target.machine.address, "owner": host_user(target.engine), "dry_run": dry_run,
        "force": force,
    })  # fmt: skip
    if "error" in found:
        other = sending.result().get("error") if sending.done() else None
        raise EngineError(
            f"{source.node} -> {target.node} ({source.machine.address}): {found['error']}" + f"; {other}" * bool(other),
            hint="run the same command again: what has arrived is kept; `envgen nodes check` tries the connection",
        )
    try:
        return {key: found[key] for key in ("files", "removed", "bytes", "of")} | found
    except MISSHAPEN:
        raise EngineError(f"{target.node}: its answer cannot be read") from None
