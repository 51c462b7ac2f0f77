"""What `build --sbom` and `inspect --sbom` share: ask the image, write the document whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import click

from envgen import files
from envgen.engine.base import Engine
from envgen.errors import UsageError
from envgen.lock import manifest, sbom
from envgen.text import counted, progress, reason_of

STDOUT = "-"


def target_of(text: str, default: Path) -> Path | None:
    """Where the document goes: ``default`` for "", None for stdout. Refused before anything is built for it."""
    if text == STDOUT:
        return None
    path = Path(text) if text else default
    if path.is_dir() or (text and not path.parent.is_dir()):
        raise UsageError(f"--sbom {path}: no file can be written there", hint="its folder must be there")
    return path


def write_sbom(engine: Engine, image_name: str, target: Path | None) -> None:
    """The SBOM of an image that envgen built, to ``target`` or stdout."""
    found = manifest.read(engine, image_name)
    image = engine.image(found.id)
    if image is None:  # removed in this very second
        raise UsageError(f"the image {image_name} is gone")
    made = sbom.write(found, image, manifest.take(engine, found.id))
    for text in made.differences:
        progress(f"note: {text}")
    if target is None:
        click.echo(made.content.decode(), nl=False)
    else:
        put(target, made.content)
        progress(f"wrote {_shown(target)}: SPDX 2.3, {counted(made.packages, 'package')}")


def put(path: Path, content: bytes) -> None:
    """Put the whole file in place, or leave the old one."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write(target, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}") from None


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
