"""An image as `docker image save` writes it, without the layers that its reader has.

Both image stores of Docker load such an archive: one looks each layer up by the digests of what it and those below it
hold, the other each blob by its own digest, before they open what the archive has.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from envgen.errors import EngineError

BLOCK = 1 << 20
LARGEST_DOCUMENT = 8 << 20
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class Reader:
    """A file, of which an iterator gives the parts."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._rest = b""

    def read(self, count: int) -> bytes:
        """``count`` bytes; fewer at the end."""
        found = [self._rest]
        length = len(self._rest)
        while length < count and (part := next(self._parts, None)) is not None:
            found.append(part)
            length += len(part)
        whole = b"".join(found)
        self._rest = whole[count:]
        return whole[:count]


def blob_of(name: str) -> str:
    """``sha256:...`` for a blob's name in the archive; "" for other members."""
    kind, _, digest = name.removeprefix("blobs/").partition("/")
    return f"{kind}:{digest}" if name.startswith("blobs/") and digest else ""


def layers_of(parts: Iterable[bytes]) -> list[str]:
    """The digests of the blobs of an image's layers, lowest first. Reads the archive to its end."""
    with _opened(parts) as archive:
        for member in archive:
            if member.name == "manifest.json":
                return [blob_of(str(name)) for name in _document(archive, member)[0]["Layers"]]
    raise EngineError("the engine's archive of the image has no manifest.json")


def filtered(parts: Iterable[bytes], name: str, skip: Collection[str]) -> Iterator[bytes]:
    """The archive under another ``name`` (REPOSITORY:TAG), without the blobs ``skip``."""
    ended = False
    with _opened(parts) as archive:
        for member in archive:
            if blob_of(member.name) in skip or member.name == "repositories":  # the names once more, for Docker 1.9
                continue
            if member.name in ("manifest.json", "index.json"):
                ended = ended or member.name == "manifest.json"  # after all blobs
                data = json.dumps(_renamed(_document(archive, member), name)).encode()
                member.size = len(data)
                yield member.tobuf() + data + _padding(len(data))
                continue
            yield member.tobuf()
            file = archive.extractfile(member) if member.isfile() else None
            while file is not None and (data := file.read(BLOCK)):
                yield data
            yield _padding(member.size)
    if not ended:
        raise EngineError("the engine's archive of the image ended early")
    yield bytes(2 * tarfile.BLOCKSIZE)


@contextmanager
def _opened(parts: Iterable[bytes]) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=cast("Any", Reader(parts)), mode="r|", bufsize=BLOCK) as archive:
            yield archive
    except (tarfile.TarError, LookupError, TypeError, ValueError) as error:
        raise EngineError(f"the engine's archive of the image cannot be read: {error}") from None


def _document(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    file = archive.extractfile(member)
    if file is None or member.size > LARGEST_DOCUMENT:
        raise EngineError(f"the engine's archive of the image has no {member.name} that can be read")
    return json.loads(file.read())


def _renamed(document: Sequence[Any] | Mapping[str, Any], name: str) -> Any:
    """manifest.json or index.json, in which the image has one name."""
    if not isinstance(document, Mapping):
        return [{**one, "RepoTags": [name]} for one in document]
    found = []
    for one in document["manifests"]:
        kept = {key: value for key, value in (one.get("annotations") or {}).items() if key not in NAMES}
        names = {NAMES[0]: _whole(name), NAMES[1]: name.rpartition(":")[2]}
        found.append({**one, "annotations": {**kept, **names}})
    return {**document, "manifests": found}


def _whole(name: str) -> str:
    """A name with its registry, as containerd keeps it."""
    first, slash, _ = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _padding(length: int) -> bytes:
    return bytes(-length % tarfile.BLOCKSIZE)
