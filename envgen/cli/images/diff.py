"""`envgen diff`: two locks, two images, or one of each, compared in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from envgen.cli.common import json_option, print_json
from envgen.engine.docker import connect
from envgen.errors import ExitCode, UsageError
from envgen.lock.compare import changes, facts
from envgen.lock.manifest import read
from envgen.lock.reading import read_lock
from envgen.text import counted, progress

_SHARED = ("image ", "git ", "file ", "patch ", "series ")


@dataclass(frozen=True)
class Side:
    """What was named: a lock (``profile`` is "") or an image of a profile."""

    name: str
    profile: str
    inputs: Mapping[str, str]


@click.command()
@click.argument("first")
@click.argument("second")
@json_option
def command(first: str, second: str, as_json: bool) -> int:
    """Say in which inputs FIRST and SECOND differ. Each is a lock file or the name of an image.

    Ends with 1 when they differ.

    \b
    Example:
      envgen diff mxfp4:prod envgen.lock
      envgen diff old.lock envgen.lock
    """
    one, two = _side(first), _side(second)
    found = changes(*_alike(one, two))
    if as_json:
        print_json({"changes": list(map(asdict, found))})
    else:
        for change in found:
            click.echo(str(change))
        progress(f"{counted(len(found), 'input differs', 'inputs differ')}" if found else "all inputs are the same")
    return ExitCode.FINDINGS if found else ExitCode.OK


def _side(name: str) -> Side:
    path = Path(name)
    if path.is_file():
        return Side(name, "", facts(read_lock(path)))
    found = read(connect(), name)
    if not found.inputs:
        raise UsageError(f"{name} was built without a lock, so it has no inputs to compare")
    return Side(name, found.profile, found.inputs)


def _alike(one: Side, two: Side) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Inputs by the same names: of a lock beside an image, what concerns the image's profile and platform."""
    if bool(one.profile) == bool(two.profile):
        return one.inputs, two.inputs
    image, lock = (one, two) if one.profile else (two, one)
    platforms = {word for name in image.inputs for word in name.split(" ")[:1] if word.startswith("linux/")}
    kept = {}
    for name, value in lock.inputs.items():
        if name.startswith(_SHARED):
            if name in image.inputs:  # what other profiles ask for is not the image's business
                kept[name] = value
        elif name.startswith(f"{image.profile} "):
            rest = name.removeprefix(f"{image.profile} ")
            if rest.split(" ")[0] in platforms:
                kept[rest] = value
    return (image.inputs, kept) if one.profile else (kept, image.inputs)
