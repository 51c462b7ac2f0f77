"""`envgen ps`: list services."""

from __future__ import annotations

from collections.abc import Sequence

import click

from envgen.app.cluster.machines import machines_of
from envgen.app.containers import also_running, rows_of
from envgen.app.session import Session
from envgen.binding import JsonDict
from envgen.cli.common import flag, reporting, wants_json
from envgen.cli.run.common import ended
from envgen.errors import ExitCode
from envgen.profile.exposure import exposed
from envgen.text import progress, table


@click.command()
@reporting
@flag("-a, --all, everything", "Include containers started by `envgen run`.")
def command(session: Session, everything: bool) -> int:
    """List the services of a profile: state, health, ports, and whether image and settings match
    the profile. Names what else runs of this project.

    A server that has ended by itself is a FAIL with the cause from its log (exit code 1).

    \b
    Example:
      envgen ps --profile prod --json
    """
    profile = session.profile()
    machines = machines_of(session.deployment())
    rows = []
    for deployment in machines.reached:
        there = deployment.engine.containers(profile.compose_name, all=True)
        ours = deployment.ours(there)
        containers = [one for one in ours if everything or not one.one_off]
        rows += rows_of(deployment, containers)
        hidden = len(there) - len(ours)
        if hidden:
            folder = deployment.other_folder(there)
            progress(f"note: {deployment.named('not shown')}: {hidden} of another folder, {folder}")
        if deployment is machines.reached[0]:
            for line in also_running(session, deployment):
                progress(f"also running: {line}")
        if deployment.node and not containers:
            progress(f"note: {deployment.named('no containers')}")
    lines = [*listing(rows), *endings(rows, profile.chosen)]
    if not (rows or machines.lost):
        lines = [f"no containers for profile {profile.name}"]
    for row in rows if not wants_json() else ():
        if row["open_ports"] and row["service"] in profile.services:
            progress(f"note: {exposed(profile, str(row['service']), row['open_ports'])}")
    left = [str(error) for error in machines.lost.values()]
    return ended(rows, lines, left) or code_of(rows)


def code_of(rows: Sequence[JsonDict]) -> int:
    """The exit code for containers: whether one has ended by itself."""
    if any(row["ended"] and row["ended"]["failed"] for row in rows):
        return ExitCode.FINDINGS
    return ExitCode.OK


def endings(rows: Sequence[JsonDict], chosen: str) -> list[str]:
    """What has ended by itself, and what Docker has started again. ``chosen``: the options of a
    command for it.
    """
    lines = []
    for row in rows:
        end = row["ended"]
        service = row["service"]
        if end and not end["asked"]:
            lines += ["", f"{'FAIL' if end['failed'] else 'note'}  {end['text']}"]
            lines += [f"      cause: {end['why']}"] if end["why"] else []
            lines += [f"      {row['changes']}"] if row["changes"] else []
            if end["failed"]:
                lines += [
                    f"      more:  envgen explain {service} {chosen}",
                    f"      fix:   envgen up {service} {chosen}",
                ]
            else:
                lines.append(f"      log:   envgen logs {chosen} {service}")
    return lines


def listing(rows: Sequence[JsonDict]) -> list[str]:
    """A table of containers; with a column for the machine if there are several. No lines without
    rows.
    """
    if not rows:
        return []
    lines = [COLUMNS, *map(_row, rows)]
    if any(row["node"] for row in rows):
        machines = ["node"]
        for row in rows:
            machines.append(str(row["node"] or "(here)"))
        lines = [(machine, *line) for machine, line in zip(machines, lines, strict=True)]
    return table(lines)


COLUMNS = ("service", "state", "health", "ports", "image", "settings", "since", "container")


def _row(row: JsonDict) -> tuple[str, ...]:
    service = row["service"]
    if row["one_off"]:
        service += " (run)"
    if row.get("variant"):
        service += f" ({row['variant']})"
    state = row["state"]
    if row["exit_code"] is not None:
        state += f" ({row['exit_code']})"
    image = row["image"] or "-"
    if image == "differs":
        image = "not the profile's"
    return (
        service,
        state,
        row["health"] or "-",
        ", ".join(row["ports"]) or "-",
        image,
        row["settings"] or "-",
        (row["since"] or "-")[:19],
        row["container"],
    )
