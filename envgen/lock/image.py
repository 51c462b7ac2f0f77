"""The manifest that an image holds of its own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envgen.binding import bind
from envgen.engine.client import Engine
from envgen.errors import NotFoundError

PATH = "/opt/envgen/manifest.json"
PREFIX = "dev.envgen."


@dataclass(frozen=True)
class Manifest:
    """``label``: what the image is built from, by the names that users know. ``inputs`` is empty
    for an image that was built without a lock.
    """

    profile: str
    label: str
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
    if f"{PREFIX}render" not in image.labels:
        raise NotFoundError(f"the image {name} was not built by envgen")
    document: dict[str, Any] = {"inputs": {}, "open": []}
    try:
        if image.labels.get(f"{PREFIX}lock"):
            document = engine.run_once(image.id, ["cat", PATH], timeout=60).document()
        profile = image.labels.get(f"{PREFIX}profile", "")
        label = image.labels.get(f"{PREFIX}inputs", "")
        return bind(Manifest, {**document, "profile": profile, "label": label})
    except (TypeError, ValueError):
        message = f"the image {name} has no readable manifest ({PATH})"
        raise NotFoundError(message) from None
