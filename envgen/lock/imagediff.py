"""Two images compared down to the byte: which layer, which path, which field. Reads what `docker image save` writes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.errors import EngineError

MOST = 1000  # differences in one layer; more say nothing new


@dataclass(frozen=True)
class Difference:
    """One field of one path in one layer; ``step`` is the command that made the layer. Layer 0 = the configuration."""

    layer: int
    step: str
    path: str
    field: str
    first: str
    second: str

    def __str__(self) -> str:
        where = f"layer {self.layer} ({self.step}): {self.path}" if self.layer else f"configuration: {self.path}"
        return f"{where}: {self.field}: {self.first or 'nothing'} and {self.second or 'nothing'}"


class _Saved:
    """One saved image."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path)  # noqa: SIM115  (closed by close)
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
                while file and (block := file.read(1 << 20)):
                    digest.update(block)
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
    one, two = _Saved(first), _Saved(second)
    try:
        found = list(_configurations(one, two))
        steps = one.steps()
        for index in range(max(len(one.layers), len(two.layers))):
            ids = [saved.diff_ids[index] if index < len(saved.diff_ids) else "" for saved in (one, two)]
            step = steps[index] if index < len(steps) else ""
            if "" in ids:
                found.append(Difference(index + 1, step, "the whole layer", "is there", ids[0][:19], ids[1][:19]))
            elif ids[0] != ids[1]:
                found += _layers(index, step, dict(one.entries(index)), dict(two.entries(index)))
        return found
    finally:
        one.tar.close()
        two.tar.close()


def _layers(
    index: int, step: str, one: Mapping[str, Mapping[str, str]], two: Mapping[str, Mapping[str, str]]
) -> list[Difference]:
    found = []
    for path in sorted({*one, *two}):
        fields, others = one.get(path), two.get(path)
        if fields is None or others is None:
            present = ("there", "") if fields is not None else ("", "there")
            found.append(Difference(index + 1, step, path, "path", *present))
            continue
        for field in sorted({*fields, *others}):
            if fields.get(field) != others.get(field):
                values = fields.get(field, ""), others.get(field, "")
                found.append(Difference(index + 1, step, path, field, *values))
    if not found:
        found.append(Difference(index + 1, step, "the layer's archive", "order of entries", "", ""))
    return found[:MOST]


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
