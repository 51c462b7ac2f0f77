"""`envgen diff`: the inputs of an image or a lock, or those that differ between two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from envgen.cli.common import answer, json_option, wants_json
from envgen.engine.client import connect
from envgen.errors import ExitCode, UsageError
from envgen.lock.image import Manifest, read
from envgen.lock.model import changes, facts, read_lock
from envgen.render.inputs import read_label
from envgen.text import counted, progress

_SHARED = ("image ", "git ")  # inputs of a lock that several profiles may share


@click.command()
@click.argument("first")
@click.argument("second", required=False)
@json_option
def command(first: str, second: str | None) -> int:
    """List the inputs that differ between FIRST and SECOND. Each is a lock file or an image.

    Exits with 1 if they differ. Without SECOND, lists the inputs of FIRST.

    \b
    Examples:
      envgen diff mxfp4:prod
      envgen diff mxfp4:prod envgen.lock
    """
    if second is None:
        return _list(_manifest(first))
    changed = changes(*_comparable(_locked(first), _locked(second)))
    answer({"changes": list(map(asdict, changed))}, map(str, changed))
    if not wants_json():
        progress(
            counted(len(changed), "input differs", "inputs differ")
            if changed
            else "all inputs are the same"
        )
    return ExitCode.FINDINGS if changed else ExitCode.OK


def _list(manifest: Manifest) -> int:
    """Print the inputs of one side, and what its lock leaves open."""
    inputs = {**read_label(manifest.label), **manifest.inputs}
    shown = {name: value for name, value in inputs.items() if not name.endswith(" sha256")}
    for text in manifest.open:
        progress(f"not locked: {text}")
    if not manifest.inputs:
        progress("built without a lock: exact versions are not recorded")
    lines = [f"{name}  {value or '(none)'}" for name, value in sorted(shown.items())]
    return answer({"inputs": inputs, "open": list(manifest.open)}, lines)


def _manifest(name: str) -> Manifest:
    """The inputs of an image, or of a lock, which belongs to no profile."""
    if Path(name).is_file():
        return Manifest("", "", facts(read_lock(Path(name))), ())
    return read(connect(), name)


def _locked(name: str) -> Manifest:
    manifest = _manifest(name)
    if not manifest.inputs:
        raise UsageError(f"{name} was built without a lock, so it records no inputs to compare")
    return manifest


def _comparable(left: Manifest, right: Manifest) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The inputs under the same names: a lock is reduced to the profile and platform of the image
    beside it.
    """
    if left.profile and not right.profile:
        return left.inputs, _of_image(left, right.inputs)
    if right.profile and not left.profile:
        return _of_image(right, left.inputs), right.inputs
    return left.inputs, right.inputs


def _of_image(image: Manifest, lock: Mapping[str, str]) -> dict[str, str]:
    """The part of a lock that an image was built from."""
    words = {name.split(" ")[0] for name in image.inputs}
    kept = {}
    for name, value in lock.items():
        own = name.removeprefix(f"{image.profile} ")
        if name.startswith(_SHARED):
            if name in image.inputs:  # the others belong to other profiles
                kept[name] = value
        elif own != name and own.startswith("linux/") and own.split(" ")[0] in words:
            kept[own] = value
    return kept
