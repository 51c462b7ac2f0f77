"""What an image itself says about its inputs: its labels, and the manifest that a locked build puts into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envgen.binding import bind
from envgen.engine.base import Engine
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
    known = {"image": name, "id": image.id, "labels": labels}
    known |= {key: labels.get(f"{PREFIX}{key}", "") for key in ("profile", "lock")}
    try:
        said: dict[str, Any] = {"inputs": {}, "open": []}
        if known["lock"]:
            said = engine.run_once(image.id, ["cat", PATH], timeout=60).document()
        return bind(Manifest, {**said, **known})
    except (TypeError, ValueError):
        message = f"the image {name} has no manifest of its inputs that can be read ({PATH})"
        raise NotFoundError(message) from None
