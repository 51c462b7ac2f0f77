"""`envgen diff`: the inputs that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from envgen.cli.common import answer, json_option, wants_json
from envgen.engine.client import connect
from envgen.errors import ExitCode, UsageError
from envgen.lock.image import read
from envgen.lock.model import changes, facts, read_lock
from envgen.text import counted, progress

_SHARED = ("image ", "git ")  # inputs of a lock that several profiles may share


@click.command()
@click.argument("first")
@click.argument("second")
@json_option
def command(first: str, second: str) -> int:
    """List the inputs that differ between FIRST and SECOND. Each is a lock file or an image.

    Exits with 1 if they differ.

    \b
    Example:
      envgen diff mxfp4:prod envgen.lock
    """
    changed = changes(*_comparable(_side(first), _side(second)))
    answer({"changes": list(map(asdict, changed))}, map(str, changed))
    if not wants_json():
        progress(
            counted(len(changed), "input differs", "inputs differ")
            if changed
            else "all inputs are the same"
        )
    return ExitCode.FINDINGS if changed else ExitCode.OK


Side = tuple[str, Mapping[str, str]]  # the profile of an image ("" for a lock), and the inputs


def _side(name: str) -> Side:
    if Path(name).is_file():
        return "", facts(read_lock(Path(name)))
    manifest = read(connect(), name)
    if not manifest.inputs:
        raise UsageError(f"{name} was built without a lock, so it records no inputs to compare")
    return manifest.profile, manifest.inputs


def _comparable(left: Side, right: Side) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The inputs under the same names: a lock is reduced to the profile and platform of the image
    beside it.
    """
    if bool(left[0]) == bool(right[0]):
        return left[1], right[1]
    (profile, image), (_, lock) = (left, right) if left[0] else (right, left)
    platforms = {
        word for name in image for word in name.split(" ")[:1] if word.startswith("linux/")
    }
    kept = {}
    for name, value in lock.items():
        if name.startswith(_SHARED):
            if name in image:  # the others belong to other profiles
                kept[name] = value
        elif name.startswith(f"{profile} "):
            rest = name.removeprefix(f"{profile} ")
            if rest.split(" ")[0] in platforms:
                kept[rest] = value
    return (image, kept) if left[0] else (kept, image)
