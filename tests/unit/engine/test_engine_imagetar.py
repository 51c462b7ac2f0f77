"""An image's archive without the layers that its reader has."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest

from envgen.app.push import Meter, shared_layers
from envgen.engine.base import Image
from envgen.engine.imagetar import filtered, layers_of
from envgen.errors import EngineError

LAYERS = {"blobs/sha256/aa": b"lowest" * 1000, "blobs/sha256/bb": b"highest" * 1000}


def archive(*, manifest: bool = True) -> bytes:
    """As `docker image save` writes it: its JSON comes last."""
    index = {
        "schemaVersion": 2,
        "manifests": [{"digest": "sha256:ff", "annotations": {"io.containerd.image.name": "x", "other": "kept"}}],
    }
    documents: dict[str, Any] = {"index.json": index}
    if manifest:
        documents["manifest.json"] = [{"Config": "blobs/sha256/cc", "RepoTags": ["demo:dev"], "Layers": list(LAYERS)}]
    members = {
        **LAYERS,
        "blobs/sha256/cc": b"{}",
        **{name: json.dumps(one).encode() for name, one in documents.items()},
    }
    members["repositories"] = b"{}"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        folder = tarfile.TarInfo("blobs/")
        folder.type = tarfile.DIRTYPE
        made.addfile(folder)
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return file.getvalue()


def parts(data: bytes, count: int = 700) -> list[bytes]:
    return [data[start : start + count] for start in range(0, len(data), count)]


def test_layers_that_are_there_are_left_out_and_the_rest_is_as_it_was() -> None:
    data = b"".join(filtered(parts(archive()), "demo:dev-envgen-push", {"sha256:aa"}))
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        content = {one.name: file.read() for one in found if (file := found.extractfile(one))}
    assert content["blobs/sha256/bb"] == LAYERS["blobs/sha256/bb"]
    assert set(content) == {"blobs/sha256/bb", "blobs/sha256/cc", "index.json", "manifest.json"}
    assert json.loads(content["manifest.json"])[0] == {
        "Config": "blobs/sha256/cc", "RepoTags": ["demo:dev-envgen-push"], "Layers": list(LAYERS),
    }  # fmt: skip
    assert json.loads(content["index.json"])["manifests"][0]["annotations"] == {
        "io.containerd.image.name": "docker.io/library/demo:dev-envgen-push",
        "org.opencontainers.image.ref.name": "dev-envgen-push",
        "other": "kept",
    }


def test_the_layers_of_an_archive() -> None:
    assert layers_of(parts(archive())) == ["sha256:aa", "sha256:bb"]
    with pytest.raises(EngineError, match=r"no manifest\.json"):
        layers_of(parts(archive(manifest=False)))


@pytest.mark.parametrize("end", [5, 600, 6000])
def test_an_archive_that_ends_early_is_an_error(end: int) -> None:
    with pytest.raises(EngineError, match="archive of the image"):
        list(filtered([archive()[:end]], "demo:dev", set()))


def image(*layers: str) -> Image:
    return Image("sha256:id", {}, "", 0, "arm64", (), {}, layers=layers)


def test_layers_are_shared_from_the_lowest_on() -> None:
    one = image("a", "b", "c")
    assert shared_layers(one, []) == 0
    assert shared_layers(one, [image("b", "c")]) == 0  # the same layer on another one is another layer
    assert shared_layers(one, [image("a"), image("a", "b", "x", "y")]) == 2
    assert shared_layers(one, [image("a", "b", "c", "d")]) == 3


def test_what_passes_a_meter_is_counted() -> None:
    meter = Meter(lambda _line: None, "it")
    assert list(meter.through([b"one", b"three"])) == [b"one", b"three"]
    assert meter.bytes == 8
