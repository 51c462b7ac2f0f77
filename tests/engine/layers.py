"""What the layers of an image hold, read from what `docker image save` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from projects import docker

from envgen.lock.imagediff import Saved, save

Fields = Mapping[str, str]
OF_A_FOLDER = ("kind", "mode", "owner")  # by which Docker, comparing, sees that a folder changed
OF_A_FILE = (*OF_A_FOLDER, "size", "time", "link")
FOLDER = "5"


def touched_only(image: str, base: str, folder: Path) -> list[str]:
    """``LAYER: PATH`` of what layers of ``image`` hold, and what comparing them with those below would not find.

    The layers of ``base`` are not judged.

    Docker makes a layer of all that a step touched; or, where it has built the step below more than once, of what
    differs from there. Both give the same where this is empty.
    """
    save(image, folder / "image.tar")
    first = len(json.loads(docker("image", "inspect", "-f", "{{json .RootFS.Layers}}", base)))
    saved = Saved(folder / "image.tar")
    below: dict[str, Fields] = {}
    found = []
    with closing(saved.tar):
        for number in range(len(saved.layers)):
            layer = dict(saved.entries(number))
            full = {str(parent) for path in layer for parent in Path(path).parents}
            found += [f"{number}: {path}" for path in _unseen(layer, below) if path not in full and number >= first]
            below |= layer
    return found


def _unseen(layer: Mapping[str, Fields], below: Mapping[str, Fields]) -> Iterator[str]:
    for path, fields in layer.items():
        if path in below:
            compared = OF_A_FOLDER if fields["kind"] == FOLDER else OF_A_FILE
            if all(fields[name] == below[path][name] for name in compared):
                yield path
