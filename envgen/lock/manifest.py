"""What an image says of itself: its labels, the manifest of a locked build, and what is installed in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgen.binding import ShapeError, bind
from envgen.engine.base import Engine, ExecResult
from envgen.errors import EngineError, NotFoundError
from envgen.inside import run

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


TIMEOUT = 120
UV = "/opt/envgen/uv"  # where a build puts uv, outside of the interpreter's own folders
PROGRAM = run.Program(("inventory",))
# The interpreter that the build worked with; an image that envgen did not build has no such link.
_CHOOSE = 'for python in /opt/envgen/bin/base-python python3; do command -v "$python" && break; done >/dev/null\n'
_CHOOSE += 'shift; exec "$python" "$@"'


@dataclass(frozen=True)
class Debian:
    """An installed Debian package."""

    name: str
    version: str
    arch: str


@dataclass(frozen=True)
class Distribution:
    """An installed Python distribution. ``license``: what it says as an SPDX expression, or ""."""

    name: str
    version: str
    license: str


@dataclass(frozen=True)
class Inventory:
    """Everything that was found, sorted by name; ``os``: /etc/os-release."""

    os: Mapping[str, str]
    debian: tuple[Debian, ...]
    distributions: tuple[Distribution, ...]


def take(engine: Engine, image_id: str) -> Inventory:
    """Ask an image what is in it. NotFoundError when it has no Python that could tell."""
    inside = run.in_image(engine, image_id, user="0:0")

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return inside(["sh", "-c", _CHOOSE, "sh", *argv], stdin, timeout)

    try:
        answer = run.ask(execute, "python3", PROGRAM, {"folders": [UV]}, timeout=TIMEOUT)
        if not isinstance(answer, run.Failure):
            return bind(Inventory, answer)
        trouble = str(answer)
    except (EngineError, ShapeError) as error:
        trouble = str(error).splitlines()[0]
    raise NotFoundError(
        f"the image {image_id[:19]} does not report what is installed in it: {trouble}",
        hint="does it have Python 3.8 or newer, as python3?",
    )
