"""What the program writes that reads an image where its engine keeps it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside.layers import archive, from_blobs, from_files, of_split

NAMES = st.binary(min_size=1, max_size=8).filter(lambda raw: not set(raw) & {0, ord("/")} and raw.strip(b"."))


def layer(files: dict[bytes, bytes], tail: int = 0) -> bytes:
    """A layer's archive: a folder, files and a link, as any program may have written them."""
    made = io.BytesIO()
    with tarfile.open(
        fileobj=made, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as out:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(f"folder/{name.decode('utf-8', 'surrogateescape')}")
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "folder"
        out.addfile(link)
    return made.getvalue() + bytes(tail)


def kept(data: bytes, folder: Path, split: Path) -> None:
    """Keep a layer as Docker does: its files, and what is between them."""
    lines: list[dict[str, Any]] = []
    done = 0
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape", encoding="utf-8") as members:
        for member in members:
            lines.append({"type": 2, "payload": base64.b64encode(data[done : member.offset_data]).decode()})
            raw = member.name.encode("utf-8", "surrogateescape")
            try:
                entry: dict[str, Any] = {"type": 1, "name": raw.decode()}
            except UnicodeDecodeError:
                entry = {"type": 1, "name_raw": base64.b64encode(raw).decode()}
            if member.size:
                entry["size"] = member.size
                (folder / member.name).parent.mkdir(exist_ok=True)
                (folder / member.name).write_bytes(data[member.offset_data : member.offset_data + member.size])
            lines.append({**entry, "payload": None})
            done = member.offset_data + member.size
    lines.append({"type": 2, "payload": base64.b64encode(data[done:]).decode()})
    split.parent.mkdir(parents=True)
    with gzip.open(split, "wt") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


@given(st.dictionaries(NAMES, st.binary(max_size=2000), max_size=5), st.integers(0, 3))
def test_a_layer_comes_out_as_it_went_in(files: dict[bytes, bytes], tail: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, split = Path(place, "diff"), Path(place, "knowledge", "tar-split.json.gz")
        folder.mkdir()
        data = layer(files, tail)
        kept(data, folder, split)
        size, parts = of_split(str(split), str(folder), True)
        assert b"".join(parts()) == data
        assert size == len(data)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def both(tmp_path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A request, and the layers: in ``files`` as Docker's own store has them, in ``blobs`` as containerd has."""
    layers = [layer({b"one": b"1" * 1000}), layer({b"two": b"2" * 3000})]
    config = json.dumps({"rootfs": {"diff_ids": [digest(one) for one in layers]}}).encode()
    store = tmp_path / "files"
    store.mkdir()
    (store / "config").write_bytes(config)
    chains = [digest(b"below"), digest(b"above")]
    for number, (data, chain) in enumerate(zip(layers, chains, strict=True)):
        (store / str(number)).mkdir()
        kept(data, store / str(number), store / "layerdb" / chain[7:] / "tar-split.json.gz")
    manifest = {
        "config": {"digest": digest(config)},
        "layers": [{"digest": digest(one), "size": len(one)} for one in layers],
    }
    manifest["config"]["size"] = len(config)  # type: ignore[index]
    document = json.dumps(manifest).encode()
    paper = json.dumps({"config": {"digest": digest(b"{}"), "size": 2}, "layers": []}).encode()
    index = json.dumps({"manifests": [{"digest": digest(one)} for one in (b"not here", paper, document)]}).encode()
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for one in (*layers, config, document, paper, b"{}", index):
        (blobs / digest(one)[7:]).write_bytes(one)
    request = {
        "image": digest(index), "layers": [digest(one) for one in layers], "chains": chains, "known": 1,
        "name": "demo:dev-new", "whole": "docker.io/library/demo:dev-new", "sizes": True,
    }  # fmt: skip
    return request, {digest(one): one for one in (*layers, config)}


def read(parts: Any) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as found:
        return {one.name: file.read() for one in found if (file := found.extractfile(one))}


@pytest.mark.parametrize("store", ["files", "blobs"])
@pytest.mark.parametrize("known", [0, 1, 2])
def test_an_image_without_the_layers_that_are_known(
    both: tuple[dict[str, Any], dict[str, bytes]], tmp_path: Path, store: str, known: int
) -> None:
    request, blobs = both
    request["known"] = known
    place = str(tmp_path / store)
    found = read(archive(request, *(from_files if store == "files" else from_blobs)(place, request)))
    config = list(blobs)[-1]
    manifest = json.loads(found["index.json"])["manifests"][0]
    written = {name.removeprefix("blobs/").replace("/", ":"): data for name, data in found.items() if "/" in name}
    assert {name: digest(data) for name, data in written.items()} == {name: name for name in written}
    assert set(written) == {manifest["digest"], config, *request["layers"][known:]}
    described = json.loads(written[manifest["digest"]])
    assert [(one["digest"], one["size"]) for one in [*described["layers"], described["config"]]] == [
        (name, len(data)) for name, data in blobs.items()
    ]
    assert manifest["annotations"]["io.containerd.image.name"] == request["whole"]
    [listed] = json.loads(found["manifest.json"])
    assert listed["RepoTags"] == ["demo:dev-new"]
    assert [listed["Config"], *listed["Layers"]] == [
        f"blobs/{one.replace(':', '/')}" for one in (config, *request["layers"])
    ]


def test_a_file_that_became_shorter_is_an_error(both: tuple[dict[str, Any], dict[str, bytes]], tmp_path: Path) -> None:
    request, _ = both
    (tmp_path / "files/1/folder/two").write_bytes(b"2")
    with pytest.raises(ValueError, match="two ends early"):
        list(archive(request, *from_files(str(tmp_path / "files"), request)))


def test_a_store_without_the_image_is_an_error(both: tuple[dict[str, Any], dict[str, bytes]], tmp_path: Path) -> None:
    request, _ = both
    with pytest.raises(ValueError, match="no image with these layers"):
        from_blobs(str(tmp_path / "blobs"), {**request, "layers": []} | {"layers": ["sha256:other"]})
