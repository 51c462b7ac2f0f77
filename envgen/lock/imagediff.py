"""Two images compared: their content (what a container sees), or down to the byte (layer, path, field).

Reads what `docker image save` writes. Content is files, modes, owners, links, bytes and configuration, and no times.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.errors import EngineError

# Files that are made of times, or name them: logs, the loader's auxiliary cache, uv's note of when a wheel was made.
_TIMES = re.compile(
    r"/var/log/(apt/[^/]+|dpkg\.log|alternatives\.log|bootstrap\.log)|/var/cache/ldconfig/aux-cache|.*/uv_cache\.json"
)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
MOST = 1000  # differences in one layer; more say nothing new


@dataclass(frozen=True)
class Difference:
    """One field of one path in one layer; ``step`` is the command that made the layer.

    Layer 0 = the configuration, -1 = all layers together.
    """

    layer: int
    step: str
    path: str
    field: str
    first: str
    second: str

    def __str__(self) -> str:
        where = {0: f"configuration: {self.path}", -1: self.path}.get(
            self.layer, f"layer {self.layer} ({self.step}): {self.path}"
        )
        return f"{where}: {self.field}: {self.first or 'nothing'} and {self.second or 'nothing'}"


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
            raise EngineError(f"the saved image has no {name}")
        return json.load(file)

    def steps(self) -> list[str]:
        """The commands of the layers, in order."""
        made = [entry for entry in self.config.get("history", []) if not entry.get("empty_layer")]
        return [_short(str(entry.get("created_by", ""))) for entry in made]

    def entries(self, index: int) -> Iterator[tuple[str, Mapping[str, str]]]:
        """(path, fields) of a layer."""
        with tarfile.open(fileobj=self.tar.extractfile(self.layers[index])) as layer:
            for member in layer:
                file = layer.extractfile(member) if member.isreg() else None
                digest = hashlib.sha256()
                noted = file is not None and member.name.endswith(".dist-info/RECORD")
                while file and (block := file.read(-1 if noted else 1 << 20)):
                    digest.update(_without_notes(block) if noted else block)
                yield (
                    "/" + member.name.lstrip("./"),
                    {
                        "kind": str(member.type, "ascii", "replace"),
                        "mode": oct(member.mode),
                        "owner": f"{member.uid}:{member.gid}",
                        "size": str(member.size),
                        "time": f"{member.mtime:f}".rstrip("0").rstrip("."),
                        "link": member.linkname,
                        "content": digest.hexdigest()[:16] if file else "",
                        **{key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY")},
                    },
                )


def compare(first: Path, second: Path) -> list[Difference]:
    """All differences of two saved images; only layers that are not the same are read."""
    with closing(_Saved(first)) as one, closing(_Saved(second)) as two:
        found = list(_configurations(one, two))
        steps = one.steps()
        for index in range(max(len(one.layers), len(two.layers))):
            ids = [saved.diff_ids[index] if index < len(saved.diff_ids) else "" for saved in (one, two)]
            step = steps[index] if index < len(steps) else ""
            if "" in ids:
                found.append(Difference(index + 1, step, "the whole layer", "is there", ids[0][:19], ids[1][:19]))
            elif ids[0] != ids[1]:
                inner = list(_compared(dict(one.entries(index)), dict(two.entries(index)), index + 1, step))
                order = Difference(index + 1, step, "the layer's archive", "order of entries", "", "")
                found += inner[:MOST] or [order]
        return found


def same_content(first: Path, second: Path) -> list[Difference]:
    """What a container of one image sees and one of the other doesn't; times don't count."""
    with closing(_Saved(first)) as one, closing(_Saved(second)) as two:
        found = [
            d for d in _configurations(one, two) if not (d.path.endswith("created") or d.path.startswith("rootfs"))
        ]
        pairs = zip(one.diff_ids, two.diff_ids, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.layers), len(two.layers)))
        mine, theirs = (_tree(saved, shared, len(saved.layers)) for saved in (one, two))
        below: _Tree = {}
        if any((path in mine) != (path in theirs) for path in {*mine, *theirs}):  # touched, and perhaps as it was
            below = _tree(one, 0, shared)
        paths = [path for path in {*mine, *theirs} if not _TIMES.fullmatch(path)]
        first_side, second_side = ({p: tree.get(p, below.get(p)) for p in paths} for tree in (mine, theirs))
        found += _compared(first_side, second_side, ignored=frozenset(("time", "size")))
        return found[:MOST]


_Tree = Mapping[str, "Mapping[str, str] | None"]


def _compared(
    one: _Tree, two: _Tree, layer: int = -1, step: str = "", *, ignored: frozenset[str] = frozenset()
) -> Iterator[Difference]:
    """What differs between two trees of paths, field by field."""
    for path in sorted({*one, *two}):
        fields, others = one.get(path), two.get(path)
        if fields is None or others is None:
            if fields is not others:
                there = ("there" if side is not None else "" for side in (fields, others))
                yield Difference(layer, step, path, "path", *there)
            continue
        for field in sorted({*fields, *others} - ignored):
            if fields.get(field) != others.get(field):
                yield Difference(layer, step, path, field, fields.get(field, ""), others.get(field, ""))


def _tree(saved: _Saved, start: int, end: int) -> _Tree:
    """What these layers together hold; None = they remove what is below them."""
    found: dict[str, Mapping[str, str] | None] = {}
    for index in range(start, end):
        layer = list(saved.entries(index))
        for path, _ in layer:  # what a layer removes is below it, wherever in the archive the mark stands
            folder, _, name = path.rpartition("/")
            if not name.startswith(_WHITEOUT):
                continue
            gone = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}"
            for inner in [inner for inner in found if inner.startswith(f"{gone}/")]:
                del found[inner]
            if name != _OPAQUE:
                found[gone] = None
        found.update((path, fields) for path, fields in layer if not path.rpartition("/")[2].startswith(_WHITEOUT))
    return found


def _without_notes(record: bytes) -> bytes:
    """A package's list of files without the line of uv's note, which has a digest of a time."""
    return b"".join(line for line in record.splitlines(keepends=True) if b"/uv_cache.json," not in line)


def _configurations(one: _Saved, two: _Saved) -> Iterator[Difference]:
    """What differs besides the layers: environment, labels, times, ..."""
    first, second = (_flat(saved.config) for saved in (one, two))
    for key in sorted({*first, *second}):
        if first.get(key) != second.get(key) and not key.startswith("rootfs.diff_ids"):
            yield Difference(0, "", key, "value", first.get(key, ""), second.get(key, ""))


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{key}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {k: v for place, inner in enumerate(value) for k, v in _flat(inner, f"{key}[{place}]").items()}
    return {key: str(value)}


def _short(command: str) -> str:
    """A step in a few words: without its mounts and the shell around it."""
    words = [word for word in command.removeprefix("RUN ").split() if not word.startswith(("--mount", "|1", "SOURCE_"))]
    text = " ".join(words).replace("/bin/sh -c ", "").removesuffix(" # buildkit")
    return text if len(text) <= 100 else text[:97] + "..."
