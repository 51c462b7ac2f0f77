"""What the layers of an image hold, read from what `docker image save` writes."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from projects import docker

Layer = Mapping[str, tarfile.TarInfo]


def touched_only(image: str, base: str) -> list[str]:
    """``LAYER: PATH`` of what layers of ``image`` hold, and what comparing them with those below would not find.

    Docker makes a layer of all that a step touched; or, where it has built the step below more than once, of what
    differs from there. Both hold the same where this is empty. The layers of ``base`` are not judged.
    """
    first = len(json.loads(docker("image", "inspect", "-f", "{{json .RootFS.Layers}}", base)))
    below: dict[str, tarfile.TarInfo] = {}
    found = []
    for number, layer in enumerate(_layers(image)):
        full = {str(parent) for path in layer for parent in Path(path).parents}
        if number >= first:
            found += [f"{number}: {path}" for path in _unseen(layer, below) if path not in full]
        below |= layer
    assert number >= first
    return found


def _layers(image: str) -> list[Layer]:
    """In their order; streamed, because writing a gigabyte down takes longer than all else."""
    archives: dict[str, Layer] = {}
    with (
        subprocess.Popen(["docker", "image", "save", image], stdout=subprocess.PIPE) as child,
        tarfile.open(fileobj=child.stdout, mode="r|") as saved,
    ):
        for member in saved:
            file = saved.extractfile(member) if member.isreg() else None
            if file is not None and member.name == "manifest.json":
                order = json.load(file)[0]["Layers"]
            elif file is not None:
                try:
                    with tarfile.open(fileobj=file, mode="r|") as layer:
                        archives[member.name] = {entry.name: entry for entry in layer}
                except tarfile.ReadError:
                    continue  # the configuration, which is not an archive
    return [archives[name] for name in order]


def _unseen(layer: Layer, below: Layer) -> Iterator[str]:
    for path, entry in layer.items():
        if path in below and _compared(entry) == _compared(below[path]):
            yield path


def _compared(entry: tarfile.TarInfo) -> tuple[object, ...]:
    """By what Docker, comparing, sees that something changed."""
    of_all = entry.type, entry.mode, entry.uid, entry.gid
    return of_all if entry.isdir() else (*of_all, entry.size, int(entry.mtime), entry.linkname)
