"""`envgen down`: stop and remove services."""

from __future__ import annotations

from functools import partial

import click

from envgen.app import lifecycle
from envgen.app.cluster.machines import machines_of, on_all
from envgen.app.session import Session
from envgen.cli.common import ask, flag, reporting, services_argument
from envgen.cli.run.common import described, ended
from envgen.errors import ExitCode, RefusedError, UsageError


@click.command()
@services_argument
@reporting
@flag("--volumes", "Also remove named volumes: caches and installed sources.")
@flag("-v, also", "The same, after a question.")
@flag("--dry-run", "Show what would be removed; change nothing.")
def command(
    session: Session, names: tuple[str, ...], volumes: bool, also: bool, dry_run: bool
) -> int:
    """Stop and remove the containers of each SERVICE (default: all of the profile).

    Without SERVICE, those that `envgen run` has started end, too. Volumes stay, unless --volumes is
    given. A volume that another folder with this project's name created stays (exit code 6).

    \b
    Examples:
      envgen down serve
      envgen down --profile prod --dry-run
    """
    if names and (volumes or also):
        raise UsageError(
            "the services of a profile share their volumes", hint="envgen down --volumes"
        )
    if also and not (volumes or dry_run or ask("Remove compiled kernels and other volumes, too?")):
        raise RefusedError("nothing was removed", hint="envgen down, or envgen down --volumes")
    volumes |= also
    profile = session.profile()
    machines = machines_of(session.deployment(), names)
    work = partial(lifecycle.remove, names=names, volumes=volumes, dry_run=dry_run)
    done, left = on_all(machines, work)
    containers = list[str]()
    removed_volumes = list[str]()
    kept = dict[str, str]()
    for deployment, removed in done:
        named = deployment.named
        containers += map(named, removed.containers)
        removed_volumes += map(named, removed.volumes)
        kept |= {named(name): str(folder) for name, folder in removed.kept.items()}
    verb, stays = ("would be removed", "would stay") if dry_run else ("removed", "stays")
    lines = [f"container {name} {verb}" for name in containers]
    lines += [f"volume {name} {verb}" for name in removed_volumes]
    for name, folder in kept.items():
        lines.append(f"volume {name} {stays}: {folder} created it (docker volume rm)")
    document = {
        "containers": containers,
        "dry_run": dry_run,
        "kept": kept,
        "left": left,
        "volumes": removed_volumes,
    }
    if not (lines or left):
        lines = [f"no containers for {described(profile, names)}"]
    code = ended(document, lines, left)
    return ExitCode.REFUSED if kept and not dry_run and not code else code
