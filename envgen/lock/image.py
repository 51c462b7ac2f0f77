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
