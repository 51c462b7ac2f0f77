"""From one machine to another: folders, sent by their containers; an image without the layers that are there."""

from __future__ import annotations

import hashlib
import json
import random
import re
import secrets
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from threading import Event
from typing import Any

from envgen.engine.client import Engine
from envgen.engine.owner import host_user
from envgen.engine.process import in_background
from envgen.engine.values import MISSHAPEN, Image, Mount
from envgen.errors import EngineError
from envgen.inside import run
from envgen.inside.run import text_of
from envgen.profile.model import Machine, Profile
from envgen.profile.values import ImageRef

PROGRAM = run.Program("node", watch=True)
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
        execute = run.in_image(
            end.engine, profile.image_name, mounts=[mount], user="0:0", network="host", hold=True, on_line=heard
        )
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


STORE = "/run/envgen/store"
_ROOT = re.compile(r"^\S+ \S+ \S+ / / .*[ ,]upperdir=([^ ,]+)/io\.containerd\.snapshotter\.", re.MULTILINE)


def archive(
    source: End, target: End, image: Image, name: str, new: str, python: str, known: int
) -> Generator[bytes, None, None]:
    """The image ``name`` as ``new``, without the lowest ``known`` layers, as `docker load` reads it. EngineError."""
    mounts = _of_containerd(source, name) if source.engine.info().containerd_store else _of_docker(image, known)
    if not mounts:
        raise EngineError(
            f"{source.node}: how Docker keeps images there is unknown to envgen (overlay2 and containerd's are known)",
            hint=f"docker --context {shlex.quote(source.machine.context)} save {name} | "
            f"docker --context {shlex.quote(target.machine.context)} load",
        )
    request = {
        "image": image.id, "layers": image.layers, "chains": chains(image.layers), "known": known,
        "name": new, "whole": _domain(name) + new, "sizes": target.engine.info().containerd_store,
    }  # fmt: skip
    argv = [python, "-I", "-S", "-c", text_of("layers"), STORE]
    return source.engine.stream_once(name, argv, stdin=json.dumps(request).encode() + b"\n", mounts=mounts)


def chains(layers: Sequence[str]) -> list[str]:
    """What Docker's own store calls each layer: by all below it, too."""

    def on(below: str, one: str) -> str:
        return f"sha256:{hashlib.sha256(f'{below} {one}'.encode()).hexdigest()}"

    return list(accumulate(layers, on))


def _of_docker(image: Image, known: int) -> list[Mount]:
    """Of overlay2: ROOT/overlay2/.../diff for each layer, what it knows of them in ROOT/image/overlay2."""
    if len(image.folders) != len(image.layers):
        return []
    driver = PurePosixPath(image.folders[-1]).parents[1]
    knowledge = driver.parent / "image" / driver.name
    found = {
        "config": knowledge / "imagedb/content/sha256" / image.id.partition(":")[2],
        "layerdb": knowledge / "layerdb/sha256",
    }
    found |= {str(number): PurePosixPath(folder) for number, folder in enumerate(image.folders) if number >= known}
    return [Mount(str(place), f"{STORE}/{below}", read_only=True) for below, place in found.items()]


def _of_containerd(source: End, name: str) -> list[Mount]:
    """Docker does not tell where containerd keeps its data; a container's root is a folder of it."""
    mounts = source.engine.run_once(name, ["cat", "/proc/self/mountinfo"]).stdout.decode(errors="replace")
    root = _ROOT.search(mounts)
    if root is None:
        return []
    folder = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), root[1])
    return [Mount(f"{folder}/io.containerd.content.v1.content/blobs/sha256", f"{STORE}/blobs", read_only=True)]


def _domain(name: str) -> str:
    """What containerd keeps in front of a name that Docker shows without its registry."""
    ref = ImageRef.parse(name)
    if ref.registry:
        return ""
    return "docker.io/" if "/" in ref.path else "docker.io/library/"
