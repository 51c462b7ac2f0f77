"""The manifest that an image holds of its own inputs; the comparison of two images."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen import files
from envgen.binding import bind
from envgen.engine.client import Engine
from envgen.errors import NotFoundError

PATH = "/opt/envgen/manifest.json"
PREFIX = "dev.envgen."


@dataclass(frozen=True)
class Manifest:
    """``inputs`` is empty for an image that was built without a lock."""

    image: str
    id: str
    labels: Mapping[str, str]
    profile: str
    inputs: Mapping[str, str]
    open: tuple[str, ...]


def read(engine: Engine, name: str) -> Manifest:
    """The manifest of an image on the engine. NotFoundError: there is no such image, or envgen did
    not build it.
    """
    image = engine.image(name)
    if image is None:
        raise NotFoundError(
            f"the engine has no image {name}", hint="`docker image ls` lists its images"
        )
    labels = {
        key: value
        for key, value in image.labels.items()
        if key.startswith((PREFIX, "org.opencontainers."))
    }
    if f"{PREFIX}render" not in labels:
        raise NotFoundError(f"the image {name} was not built by envgen")
    document: dict[str, Any] = {"inputs": {}, "open": []}
    try:
        if labels.get(f"{PREFIX}lock"):
            document = engine.run_once(image.id, ["cat", PATH], timeout=60).document()
        own = {
            "image": name,
            "id": image.id,
            "labels": labels,
            "profile": labels.get(f"{PREFIX}profile", ""),
        }
        return bind(Manifest, {**document, **own})
    except (TypeError, ValueError):
        message = f"the image {name} has no readable manifest ({PATH})"
        raise NotFoundError(message) from None


def debian_packages(engine: Engine, image: str) -> list[str]:
    """name=version of each Debian package in an image; [] where it has none. No lock pins them."""
    listed = engine.run_once(
        image, ["dpkg-query", "-W", "-f", "${Package}=${Version}\\n"], timeout=60
    )
    return [] if listed.code else listed.stdout.decode("utf-8", "replace").split()


# Files that hold times: logs, the loader's auxiliary cache, uv's note of when a wheel was built.
_TIMES = re.compile(
    r"/var/log/(apt/[^/]+|dpkg\.log|alternatives\.log|bootstrap\.log)|/var/cache/ldconfig/aux-cache|.*/uv_cache\.json"
)
MOST = 1000  # differences


@dataclass(frozen=True)
class Difference:
    """One field of one path, or of one key of the configuration."""

    path: str
    field: str
    first: str
    second: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.field}: {self.first or 'nothing'} and {self.second or 'nothing'}"
        )


def differences(engine: Engine, first: str, second: str) -> list[Difference]:
    """What differs between the containers of two images, without times."""
    with files.Scratch("verify") as folder:
        sides = [
            (_flat(engine.image_config(name)), _contents(engine, name, Path(folder)))
            for name in (first, second)
        ]
    (config, tree), (other, others) = sides
    return [*compared(config, other, "configuration: "), *compared(tree, others)][:MOST]


Tree = Mapping[str, Mapping[str, str]]  # path -> fields


def _contents(engine: Engine, image: str, folder: Path) -> Tree:
    """The files of an image."""
    archive = folder / "files.tar"  # one at a time: an image may have 20 GB
    engine.export_image(image, archive)
    with tarfile.open(archive) as tar:
        return read_tree(tar)


def read_tree(tar: tarfile.TarFile) -> Tree:
    """The files of an archive that `docker export` wrote, without those that hold times."""
    tree: dict[str, Mapping[str, str]] = {}
    for member in tar:
        path = f"/{member.name}"
        if _TIMES.fullmatch(path):
            continue
        file = tar.extractfile(member) if member.isreg() else None
        digest, is_record = hashlib.sha256(), path.endswith(".dist-info/RECORD")
        while file and (block := file.read(-1 if is_record else 1 << 20)):
            digest.update(_without_uv_cache(block) if is_record else block)
        tree[path] = {
            "kind": str(member.type, "ascii", "replace"),
            "mode": oct(member.mode),
            "owner": f"{member.uid}:{member.gid}",
            "link": member.linkname,
            "content": digest.hexdigest()[:16] if file else "",
            **{key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY")},
        }
    return tree


def compared(first: Tree, second: Tree, head: str = "") -> Iterator[Difference]:
    """What differs between two trees of paths, field by field."""
    for path in sorted({*first, *second}):
        fields, others = first.get(path), second.get(path)
        if fields is None or others is None:
            yield Difference(
                head + path,
                "path",
                *("there" if side is not None else "" for side in (fields, others)),
            )
            continue
        for name in sorted({*fields, *others}):
            if fields.get(name) != others.get(name):
                yield Difference(head + path, name, fields.get(name, ""), others.get(name, ""))


def _without_uv_cache(record: bytes) -> bytes:
    """A package's RECORD without the line of uv_cache.json, whose digest depends on a time."""
    return b"".join(
        line for line in record.splitlines(keepends=True) if b"/uv_cache.json," not in line
    )


def _flat(value: Any, key: str = "") -> dict[str, dict[str, str]]:
    """The configuration of an image, with a row for each of its values."""
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return {
            k: v for name, one in inner for k, v in _flat(one, f"{key}.{name}".lstrip(".")).items()
        }
    return {key: {"value": str(value)}}
