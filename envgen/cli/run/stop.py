"""`envgen stop`: stop services, and keep their containers."""

from __future__ import annotations

from functools import partial

import click

from envgen.app import lifecycle
from envgen.app.cluster.machines import machines_of, on_all
from envgen.app.session import Session
from envgen.cli.common import reporting, services_argument
from envgen.cli.run.common import described, ended


@click.command()
@services_argument
@reporting
def command(session: Session, names: tuple[str, ...]) -> int:
    """Stop the containers of each SERVICE (default: all of the profile), and keep them.

    `envgen up` starts them again.

    \b
    Example:
      envgen stop serve
    """
    machines = machines_of(session.deployment(), names)
    done, left = on_all(machines, partial(lifecycle.halt, names=names))
    containers = list[str]()
    for deployment, stopped in done:
        containers += map(deployment.named, stopped)
    lines = [f"container {name} stopped" for name in containers]
    if not containers and not left:
        lines = [f"no running containers for {described(session.profile(), names)}"]
    return ended({"containers": containers, "left": left}, lines, left)
