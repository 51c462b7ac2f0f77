"""Runs inside a container that sees how its engine keeps an image: writes it as `docker load` reads it.

The lowest layers are left out, as many as the reader has. `docker save` reads all of them to give any. containerd keeps
each layer as it was pulled or made, by its digest. Docker's own store keeps a layer's files, and all that its archive
had beside their contents (tar-split), so the same archive comes out again. The engine that loads it compares digests.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import gzip
import hashlib
import json
import os
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Tuple

Blob = Tuple[int, Callable[[], Iterator[bytes]]]
Manifest = Callable[[], bytes]
BLOCK = 1 << 20
LARGEST_DOCUMENT = 8 << 20
OCI = "application/vnd.oci.image."
FILE, SEGMENT = 1, 2  # tar-split: the content of a file, and what is between two of them
HEADER = b'{"type":2,"payload":"'


def main(store: str) -> None:
    """The request is a line of stdin, which stays open as long as envgen lives."""
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(OSError):
        fcntl.fcntl(1, 1031, BLOCK)  # F_SETPIPE_SZ: with 64 KiB both ends wait for each other on a busy machine
    kept = os.path.join(store, "blobs")
    for part in archive(request, *(from_blobs(kept, request) if os.path.isdir(kept) else from_files(store, request))):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def watch() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def archive(request: Dict[str, Any], described: Manifest, blobs: List[Tuple[str, Blob]]) -> Iterator[bytes]:
    """``blobs``: the configuration, then the layers, lowest first. ``described`` is called when they are written."""
    for digest, blob in dict(blobs[:1] + blobs[1 + request["known"] :]).items():
        yield from member(place(digest), blob)
    manifest = described()
    digest = digest_of(manifest)
    names = {
        "io.containerd.image.name": request["whole"],
        "org.opencontainers.image.ref.name": request["name"].rpartition(":")[2],
    }
    media = json.loads(manifest.decode()).get("mediaType", OCI + "manifest.v1+json")
    image = {"mediaType": media, "digest": digest, "size": len(manifest), "annotations": names}
    config, layers = place(blobs[0][0]), [place(one) for one, _ in blobs[1:]]
    documents = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": [image]},
        "manifest.json": [{"Config": config, "RepoTags": [request["name"]], "Layers": layers}],
    }
    yield from member(place(digest), of_bytes(manifest))
    for name, one in documents.items():
        yield from member(name, of_bytes(json.dumps(one).encode()))
    yield bytes(2 * tarfile.BLOCKSIZE)


def member(name: str, blob: Blob) -> Iterator[bytes]:
    size, parts = blob
    described = tarfile.TarInfo(name)
    described.size = size
    yield described.tobuf(tarfile.GNU_FORMAT)
    yield from parts()
    yield bytes(-size % tarfile.BLOCKSIZE)


# --- containerd's store -----------------------------------------------------------------------------------------------


def from_blobs(folder: str, request: Dict[str, Any]) -> Tuple[Manifest, List[Tuple[str, Blob]]]:
    """The manifest of the image with these layers, and its blobs."""
    waiting = [request["image"]]
    while waiting:
        data = document(folder, waiting.pop(0))
        found = json.loads(data.decode())
        # An index also names what was not pulled for this machine, and papers about the image.
        waiting += [
            one["digest"] for one in found.get("manifests", ()) if os.path.exists(path_of(folder, one["digest"]))
        ]
        if "config" in found:
            config = json.loads(document(folder, found["config"]["digest"]).decode())
            if config.get("rootfs", {}).get("diff_ids") == request["layers"]:
                parts = [found["config"], *found["layers"]]
                found = [(one["digest"], of_path(path_of(folder, one["digest"]), one["size"])) for one in parts]
                return functools.partial(bytes, data), found
    raise ValueError("the store has no image with these layers")


def path_of(folder: str, digest: str) -> str:
    return os.path.join(folder, digest.partition(":")[2])


def document(folder: str, digest: str) -> bytes:
    with open(path_of(folder, digest), "rb") as file:
        return file.read(LARGEST_DOCUMENT)


# --- Docker's own store -----------------------------------------------------------------------------------------------


def from_files(store: str, request: Dict[str, Any]) -> Tuple[Manifest, List[Tuple[str, Blob]]]:
    """A manifest as `docker save` writes it, and the image's blobs."""
    with open(os.path.join(store, "config"), "rb") as file:
        config = file.read(LARGEST_DOCUMENT)
    chains, known = [chain.partition(":")[2] for chain in request["chains"]], request["known"]
    splits = [os.path.join(store, "layerdb", chain, "tar-split.json.gz") for chain in chains]
    blobs = [(digest_of(config), of_bytes(config))]
    for number, (digest, split) in enumerate(zip(request["layers"], splits)):
        blobs.append((digest, of_split(split, os.path.join(store, str(number)), number >= known)))
    # An image has half a million of these lines: they are counted while its layers are sent.
    below = ThreadPoolExecutor(1).map(size_of, splits[:known]) if request["sizes"] else [0] * known  # not asked for

    def described() -> bytes:
        sizes = [blob[0] for _, blob in blobs]
        sizes[1 : 1 + known] = below
        found = [
            {"mediaType": OCI + ("layer.v1.tar" if number else "config.v1+json"), "digest": digest, "size": size}
            for number, ((digest, _), size) in enumerate(zip(blobs, sizes))
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI + "manifest.v1+json",
            "config": found[0],
            "layers": found[1:],
        }
        return json.dumps(manifest, separators=(",", ":")).encode()

    return described, blobs


def of_split(split: str, folder: str, needed: bool) -> Blob:
    """A layer's archive, of what is between its files and of the files; where it is not ``needed``, its size is 0."""

    def parts() -> Iterator[bytes]:
        for line in lines_of(split):
            entry = json.loads(line.decode())
            if entry["type"] == SEGMENT:
                yield base64.b64decode(entry["payload"])
            elif entry.get("size"):
                raw = entry.get("name_raw")  # where it is not UTF-8
                name = base64.b64decode(raw) if raw else os.fsencode(entry["name"])
                yield from of_path(os.path.join(os.fsencode(folder), name.lstrip(b"/")), entry["size"])[1]()

    return size_of(split) if needed else 0, parts


def size_of(split: str) -> int:
    return sum(map(length, lines_of(split)))


def lines_of(split: str) -> Iterator[bytes]:
    with gzip.open(split) as lines:
        yield from lines


def length(line: bytes) -> int:
    if line.startswith(HEADER):  # nearly all of these files
        end = line.index(b'"', len(HEADER))
        return (end - len(HEADER)) // 4 * 3 - line.count(b"=", end - 2, end)
    entry = json.loads(line.decode())
    return int(entry.get("size", 0)) if entry["type"] == FILE else len(base64.b64decode(entry["payload"]))


# --- both -------------------------------------------------------------------------------------------------------------


def of_path(path: Any, size: int) -> Blob:
    def parts() -> Iterator[bytes]:
        left = size
        with open(path, "rb") as file:
            while left:
                data = file.read(min(BLOCK, left))
                if not data:
                    raise ValueError("%s ends early" % os.fsdecode(path))
                left -= len(data)
                yield data

    return size, parts


def of_bytes(data: bytes) -> Blob:
    return len(data), lambda: iter([data])


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


if __name__ == "__main__":
    main(sys.argv[1])
