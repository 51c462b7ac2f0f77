"""What an image itself says about its inputs: its labels, and the manifest that a locked build puts into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envgen.engine.base import MISSHAPEN, Engine, Image
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
    lock: str
    inputs: Mapping[str, str]
    open: tuple[str, ...]
    # source -> distribution, kind, origin, patches
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    epoch: int = 0  # the time stamp of what the build added; 0 = it was built without a lock


def read(engine: Engine, name: str) -> Manifest:
    """The manifest of an image that the engine has. NotFoundError when it is not there, or not one of ours."""
    image = engine.image(name)
    if image is None:
        raise NotFoundError(f"the engine has no image {name}", hint="`docker image ls` shows those that it has")
    labels = {key: value for key, value in image.labels.items() if key.startswith((PREFIX, "org.opencontainers."))}
    if f"{PREFIX}render" not in labels:
        raise NotFoundError(f"the image {name} was not built by envgen")
    said: Any = {}
    if labels.get(f"{PREFIX}lock"):
        done = engine.run_once(image.id, ["cat", PATH], timeout=60)
        try:
            said = done.document() if done.code == 0 else {}
        except ValueError:
            said = {}
        if not isinstance(said, dict) or not said:
            raise _unreadable(name)
    try:
        return _manifest(name, image, labels, said)
    except MISSHAPEN:
        raise _unreadable(name) from None


def _unreadable(name: str) -> NotFoundError:
    return NotFoundError(f"the image {name} has no manifest of its inputs that can be read ({PATH})")


def _manifest(name: str, image: Image, labels: Mapping[str, str], said: Mapping[str, Any]) -> Manifest:
    return Manifest(
        name,
        image.id,
        labels,
        labels.get(f"{PREFIX}profile", ""),
        labels.get(f"{PREFIX}lock", ""),
        {str(key): str(value) for key, value in dict(said.get("inputs") or {}).items()},
        tuple(map(str, said.get("open") or ())),
        {name: {k: str(v) for k, v in source.items()} for name, source in dict(said.get("sources") or {}).items()},
        int(said.get("epoch") or 0),
    )
