"""What is installed in an image, read from inside in one throw-away container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.binding import bind
from envgen.engine.base import MISSHAPEN, Engine
from envgen.errors import NotFoundError
from envgen.paths import templates_dir

TIMEOUT = 120
UV = "/opt/envgen/uv"  # where a build puts uv, outside of the interpreter's own folders
# The interpreter that the build worked with; an image that envgen did not build has no such link.
_LAUNCH = 'for python in /opt/envgen/bin/base-python python3; do command -v "$python" && break; done >/dev/null\n'
_LAUNCH += 'exec "$python" - "$@"'


@dataclass(frozen=True)
class Debian:
    """An installed Debian package, and the source package that it was made from."""

    name: str
    version: str
    arch: str
    source: str
    source_version: str
    homepage: str


@dataclass(frozen=True)
class Distribution:
    """An installed Python distribution. ``license``: an SPDX expression or ""; ``license_said``: its other words."""

    name: str
    version: str
    place: str
    homepage: str
    license: str
    license_said: str


@dataclass(frozen=True)
class Inventory:
    """Everything that was found, sorted by name; ``os``: /etc/os-release."""

    os: Mapping[str, str]
    machine: str
    python: str
    debian: tuple[Debian, ...]
    distributions: tuple[Distribution, ...]


def take(engine: Engine, image_id: str) -> Inventory:
    """Ask an image what is in it. NotFoundError when it has no Python that could tell."""
    script = (templates_dir() / "scripts" / "inventory").read_bytes()
    done = engine.run_once(image_id, ["sh", "-c", _LAUNCH, "sh", UV], stdin=script, user="0:0", timeout=TIMEOUT)
    try:
        return bind(Inventory, done.document())
    except MISSHAPEN:
        tail = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        raise NotFoundError(
            f"the image {image_id[:19]} does not tell what is installed in it: {tail or f'exit code {done.code}'}",
            hint="does it have Python 3.8 or newer, as python3?",
        ) from None
