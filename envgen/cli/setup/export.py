"""`envgen export`: the project for other tools."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import click

from envgen import files
from envgen.app.session import Session
from envgen.app.up import main_service
from envgen.cli import FullGroup
from envgen.cli.common import project_options, service_argument, variant_option
from envgen.deployment import known_service
from envgen.engine.owner import caller
from envgen.errors import ExitCode, RefusedError
from envgen.profile.model import Profile
from envgen.render import exports
from envgen.text import progress

WRITTEN = b"Written by `envgen export"  # in every file of ours
ENGINE = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG")  # variables that choose an engine


@click.group(cls=FullGroup)
def command() -> None:
    """Write a service as a file for systemd or an editor.

    Files that `envgen export` did not write are not overwritten.

    \b
    Examples:
      envgen export devcontainer dev -o .devcontainer/devcontainer.json
      envgen export systemd serve -o mxfp4-serve.service
    """


output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file (default: stdout).",
)


def _deliver(text: str, output: Path | None) -> int:
    if output is None:
        click.echo(text, nl=False)
        return 0
    if output.exists() and WRITTEN not in files.read(output):
        hint = "move it away, or name another file with -o"
        raise RefusedError(
            f"{output} was not written by `envgen export` and is not overwritten", hint=hint
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    files.write(output, text.encode())
    progress(f"wrote {output}")
    return ExitCode.OK


def _named(profile: Profile, service: str | None) -> str:
    name = service or main_service(profile)
    known_service(profile, name)
    return name


@command.command()
@service_argument
@project_options
@output_option
def devcontainer(session: Session, service: str | None, output: Path | None) -> int:
    """Write devcontainer.json, so that an editor works inside SERVICE.

    SERVICE defaults to the first one. The editor starts the service with `envgen up` and attaches
    to it. It uses the Python that has the mounted sources.

    \b
    Example:
      envgen export devcontainer dev -o .devcontainer/devcontainer.json
    """
    profile = session.profile(local=False)
    root = session.loaded(local=False).project.root
    folder = os.path.relpath(
        (output or root / ".devcontainer" / "x").resolve().parent, root.resolve()
    )
    file = session.loaded(local=False).project.file.name  # the editor's folder is the project's
    text = exports.devcontainer(profile, _named(profile, service), folder, session.again(file))
    if not (root / profile.compose_file).is_file():
        progress(
            f"note: the editor reads {profile.compose_file}, which does not exist yet: run `envgen render`"
        )
    return _deliver(text, output)


@command.command()
@service_argument
@project_options
@variant_option
@output_option
def systemd(session: Session, service: str | None, output: Path | None) -> int:
    """Write a systemd unit that runs `envgen up SERVICE` when this machine starts.

    SERVICE defaults to the first one. The unit waits for Docker and the network, tries at most
    three times an hour, and stops the service when the machine shuts down. It runs as your user, in
    this folder, on the Docker Engine that this shell uses, with the same --file, --set and ENVGEN_
    variables. It reads secrets from `.env` in this folder.

    \b
    Examples:
      envgen export systemd serve -p prod -o mxfp4-serve.service
      sudo install -m 644 mxfp4-serve.service /etc/systemd/system/ && sudo systemctl enable --now
      mxfp4-serve
    """
    profile = session.profile()
    root = session.loaded().project.root.resolve()
    name = _named(profile, service)
    script = Path(sys.executable).with_name("envgen")
    program = [sys.executable, "-m", "envgen"]
    if os.access(script, os.X_OK):
        program = [str(script)]
    user = pwd.getpwuid(caller()[0]).pw_name
    # A unit inherits nothing of this shell.
    environment = {}
    for key in ENGINE:
        if os.environ.get(key):
            environment[key] = os.environ[key]
    environment |= session.variables()
    options = session.again(str(session.loaded().project.file))
    text = exports.systemd(
        profile,
        name,
        program=program,
        folder=str(root),
        user=user,
        environment=environment,
        options=options,
    )
    return _deliver(text, output)
