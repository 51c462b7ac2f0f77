"""The manifest that an image holds of its own inputs; the comparison of two saved images."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envgen.binding import bind
from envgen.engine.client import Engine
from envgen.errors import EngineError, NotFoundError

PATH = "/opt/envgen/manifest.json"
PREFIX = "dev.envgen."


@dataclass(frozen=True)
class Manifest:
    """``inputs`` is empty for an image that was built without a lock."""

    image: str
    id: str
    labels: Mapping[str, str]
    profile: str
    lock: str
    inputs: Mapping[str, str]
    open: tuple[str, ...]
    # source -> distribution, kind, origin, patches
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    epoch: int = 0  # the time stamp of the files that the build added; 0: built without a lock


def read(engine: Engine, name: str) -> Manifest:
    """The manifest of an image on the engine. NotFoundError: there is no such image, or envgen did not build it."""
    image = engine.image(name)
    if image is None:
        raise NotFoundError(f"the engine has no image {name}", hint="`docker image ls` lists its images")
    labels = {key: value for key, value in image.labels.items() if key.startswith((PREFIX, "org.opencontainers."))}
    if f"{PREFIX}render" not in labels:
        raise NotFoundError(f"the image {name} was not built by envgen")
    known = {"image": name, "id": image.id, "labels": labels}
    known |= {key: labels.get(f"{PREFIX}{key}", "") for key in ("profile", "lock")}
    try:
        manifest: dict[str, Any] = {"inputs": {}, "open": []}
        if known["lock"]:
            manifest = engine.run_once(image.id, ["cat", PATH], timeout=60).document()
        return bind(Manifest, {**manifest, **known})
    except (TypeError, ValueError):
        message = f"the image {name} has no readable manifest ({PATH})"
        raise NotFoundError(message) from None


def debian_packages(engine: Engine, image: str) -> list[str]:
    """name=version of each Debian package in an image; [] where it has none. No lock pins them."""
    listed = engine.run_once(image, ["dpkg-query", "-W", "-f", "${Package}=${Version}\\n"], timeout=60)
    return [] if listed.code else listed.stdout.decode("utf-8", "replace").split()


# Files that hold times: logs, the loader's auxiliary cache, uv's note of when a wheel was built.
_TIMES = re.compile(
    r"/var/log/(apt/[^/]+|dpkg\.log|alternatives\.log|bootstrap\.log)|/var/cache/ldconfig/aux-cache|.*/uv_cache\.json"
)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
MOST = 1000  # differences


@dataclass(frozen=True)
class Difference:
    """One field of one path, or of one key of the configuration."""

    path: str
    field: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.path}: {self.field}: {self.first or 'nothing'} and {self.second or 'nothing'}"


class _Saved:
    """One saved image."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path)  # noqa: SIM115  (closed by close)
        self.close = self.tar.close
        document = self._json("manifest.json")
        self.layers: list[str] = list(document[0]["Layers"])
        self.config: dict[str, Any] = self._json(document[0]["Config"])
        self.diff_ids: list[str] = list(self.config.get("rootfs", {}).get("diff_ids", []))

    def _json(self, name: str) -> Any:
        file = self.tar.extractfile(name)
        if file is None:
            raise EngineError(f"the saved image lacks {name}")
        return json.load(file)

    def configuration(self) -> dict[str, dict[str, str]]:
        """Environment, labels, ..., without times."""
        found = ((key, value) for key, value in _flat(self.config).items() if not key.startswith("rootfs"))
        return {key: {"value": value} for key, value in found if not key.endswith("created")}

    def entries(self, index: int) -> dict[str, Mapping[str, str]]:
        """path -> fields of a layer, in its order; empty where there is no such layer."""
        found: dict[str, Mapping[str, str]] = {}
        if index >= len(self.layers):
            return found
        with tarfile.open(fileobj=self.tar.extractfile(self.layers[index])) as layer:
            for member in layer:
                file = layer.extractfile(member) if member.isreg() else None
                digest = hashlib.sha256()
                is_record = file is not None and member.name.endswith(".dist-info/RECORD")
                while file and (block := file.read(-1 if is_record else 1 << 20)):
                    digest.update(_without_uv_cache(block) if is_record else block)
                found["/" + member.name.lstrip("./")] = {
                    "kind": str(member.type, "ascii", "replace"),
                    "mode": oct(member.mode),
                    "owner": f"{member.uid}:{member.gid}",
                    "size": str(member.size),
                    "time": f"{member.mtime:f}".rstrip("0").rstrip("."),
                    "link": member.linkname,
                    "content": digest.hexdigest()[:16] if file else "",
                    **{key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY")},
                }
        return found


_Tree = Mapping[str, "Mapping[str, str] | None"]


def compare(first: Path, second: Path) -> list[Difference]:
    """What differs between the containers of two images, without times. Only layers that differ are read."""
    with closing(_Saved(first)) as one, closing(_Saved(second)) as two:
        found = list(_compared(one.configuration(), two.configuration(), "configuration: "))
        pairs = zip(one.diff_ids, two.diff_ids, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.layers), len(two.layers)))
        mine, theirs = (_tree(saved, shared, len(saved.layers)) for saved in (one, two))
        below: _Tree = {}
        if any((path in mine) != (path in theirs) for path in {*mine, *theirs}):  # perhaps with the same content
            below = _tree(one, 0, shared)
        paths = [path for path in {*mine, *theirs} if not _TIMES.fullmatch(path)]
        first_side, second_side = ({path: tree.get(path, below.get(path)) for path in paths} for tree in (mine, theirs))
        found += _compared(first_side, second_side, ignored=frozenset(("time", "size")))
        return found[:MOST]


def _compared(one: _Tree, two: _Tree, head: str = "", *, ignored: frozenset[str] = frozenset()) -> Iterator[Difference]:
    """What differs between two trees of paths, field by field."""
    for path in sorted({*one, *two}):
        fields, others = one.get(path), two.get(path)
        if fields is None or others is None:
            if fields is not others:
                there = ("there" if side is not None else "" for side in (fields, others))
                yield Difference(head + path, "path", *there)
            continue
        for name in sorted({*fields, *others} - ignored):
            if fields.get(name) != others.get(name):
                yield Difference(head + path, name, fields.get(name, ""), others.get(name, ""))


def _tree(saved: _Saved, start: int, end: int) -> _Tree:
    """The files of these layers together; None: removed from a layer below them."""
    found: dict[str, Mapping[str, str] | None] = {}
    for index in range(start, end):
        layer = saved.entries(index)
        for path in layer:  # a whiteout removes what is in layers below, wherever it is in the archive
            folder, _, name = path.rpartition("/")
            if not name.startswith(_WHITEOUT):
                continue
            removed = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}"
            for inner in [inner for inner in found if inner.startswith(f"{removed}/")]:
                del found[inner]
            if name != _OPAQUE:
                found[removed] = None
        found |= {p: fields for p, fields in layer.items() if not p.rpartition("/")[2].startswith(_WHITEOUT)}
    return found


def _without_uv_cache(record: bytes) -> bytes:
    """A package's RECORD without the line of uv_cache.json, whose digest depends on a time."""
    return b"".join(line for line in record.splitlines(keepends=True) if b"/uv_cache.json," not in line)


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{key}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {k: v for place, inner in enumerate(value) for k, v in _flat(inner, f"{key}[{place}]").items()}
    return {key: str(value)}
