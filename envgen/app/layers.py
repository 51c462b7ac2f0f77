"""An image of one engine for another, without the lowest layers, which that has: read where the engine keeps it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Generator, Sequence
from itertools import accumulate
from pathlib import PurePosixPath

from envgen.app.copy import End
from envgen.engine.values import Image, Mount
from envgen.errors import EngineError
from envgen.inside.run import text_of
from envgen.profile.values import ImageRef

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
    return list(
        accumulate(layers, lambda below, one: f"sha256:{hashlib.sha256(f'{below} {one}'.encode()).hexdigest()}")
    )


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
