"""`envgen diff`: two locks, two images, or one of each; or a profile and a Compose file. Compared in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from envgen.app.compose_diff import compare
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.engine.client import connect
from envgen.errors import ExitCode, UsageError
from envgen.lock.image import read
from envgen.lock.model import changes, facts, read_lock
from envgen.text import counted, progress

_SHARED = ("image ", "git ", "file ", "patch ", "series ")


@dataclass(frozen=True)
class Side:
    """What was named: a lock (``profile`` is "") or an image of a profile."""

    name: str
    profile: str
    inputs: Mapping[str, str]


@click.command()
@click.argument("first", required=False)
@click.argument("second", required=False)
@project_options
@click.option("--with", "other", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Compare what the profile runs with what this Compose file (or recipe) runs.")  # fmt: skip
@click.option(
    "--service", "pairs", multiple=True, metavar="A=B", help="With --with: A of the profile is B of the file."
)
@json_option
def command(
    session: Session, first: str | None, second: str | None, other: Path | None, pairs: tuple[str, ...], as_json: bool
) -> int:
    """Say in which inputs FIRST and SECOND differ. Each is a lock file or the name of an image.

    With --with, say what differs when the profile runs rather than an existing Compose file: both as
    `docker compose config` resolves them, `.env` and env_file included. Values that look like secrets are not shown.
    Ends with 1 when they differ.

    \b
    Examples:
      envgen diff mxfp4:prod envgen.lock
      envgen diff old.lock envgen.lock
      envgen diff --with compose.yaml --service serve=vllm
    """
    if other is not None and first is None:
        return _with(session, other, pairs, as_json)
    if other is not None or pairs or first is None or second is None:
        hint = "envgen diff FIRST SECOND, or envgen diff --with FILE"
        raise UsageError("name two locks or images, or one Compose file", hint=hint)
    one, two = _side(first), _side(second)
    found = changes(*_alike(one, two))
    if as_json:
        print_json({"changes": list(map(asdict, found))})
    else:
        for change in found:
            click.echo(str(change))
        progress(f"{counted(len(found), 'input differs', 'inputs differ')}" if found else "all inputs are the same")
    return ExitCode.FINDINGS if found else ExitCode.OK


def _with(session: Session, file: Path, pairs: Sequence[str], as_json: bool) -> int:
    named = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(named) != len(pairs):
        raise UsageError("--service wants A=B", hint="A is a service of the profile, B one of the file")
    found = compare(session.profile(), session.loaded().project.root, file, named)
    services = list(dict.fromkeys(one.service for one in found))
    if as_json:
        print_json({"differences": list(map(asdict, found))})
    for service in [] if as_json else services:
        click.echo(service)
        for one in found:
            if one.service == service:
                click.echo(f"  {one}")
    progress(counted(len(found), "difference") + ", without what envgen gives every container" if found else
             "both run the same, but for what envgen gives every container")  # fmt: skip
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
