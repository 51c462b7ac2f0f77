"""`envgen down`: stop and remove services."""

from __future__ import annotations

from functools import partial

import click

from envgen.app import lifecycle
from envgen.app.cluster.machines import machines_of, on_all
from envgen.app.session import Session
from envgen.cli.common import ask, flag, reporting, services_argument, wants_json
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
    containers = [
        deployment.named(name) for deployment, removed in done for name in removed.containers
    ]
    removed_volumes = [
        deployment.named(name) for deployment, removed in done for name in removed.volumes
    ]
    kept = {
        deployment.named(name): str(folder)
        for deployment, removed in done
        for name, folder in removed.kept.items()
    }
    verb, stays = ("would be removed", "would stay") if dry_run else ("removed", "stays")
    lines = [f"container {name} {verb}" for name in containers] + [
        f"volume {name} {verb}" for name in removed_volumes
    ]
    for name, folder in kept.items():
        lines.append(f"volume {name} {stays}: {folder} created it (docker volume rm)")
    document = {
        "containers": containers,
        "dry_run": dry_run,
        "kept": kept,
        "left": left,
        "volumes": removed_volumes,
    }
    nothing = not (lines or left or wants_json())
    code = ended(
        document, [f"no containers for {described(profile, names)}"] if nothing else lines, left
    )
    return ExitCode.REFUSED if kept and not dry_run and not code else code
