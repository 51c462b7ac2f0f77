"""`envgen nodes`: the machines of a cluster, and whether they fit together."""

from __future__ import annotations

import os
import sys
import time

import click

from envgen.app import cluster, nodes
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import LARGEST, json_option, print_json, project_options, variant_option
from envgen.cli.services.options import timeout_option
from envgen.cli.services.up import document, report
from envgen.errors import ExitCode
from envgen.text import paint, progress, table, wants_colour, with_own_colours

MARKS = {"ok": ("ok  ", "32"), "warn": ("warn", "33"), "fail": ("FAIL", "31")}


@click.group(cls=FullGroup)
def command() -> None:
    """Serve one model on several machines (`cluster` of a service).

    \b
    Example:
      envgen nodes check
      envgen nodes up serve
      envgen nodes down
    """


@command.command()
@click.argument("service", required=False)
@project_options
@variant_option
@json_option
def check(session: Session, service: str | None, variant: str, as_json: bool) -> int:
    """Compare the machines of SERVICE before anything is started on them.

    Each machine is asked through its Docker context, by a container of the profile's own image: Docker, the image by
    its content, versions, the network interface, RDMA devices, ports, memory, the weights, the clock. Then a TCP
    connection is tried in both directions. The variables of each machine are written to .envgen/nodes/NAME.env, for
    plain Docker:

    \b
      docker --context spark-2 compose --env-file .envgen/nodes/spark-2.env -f compose/prod.yaml \\
        -f compose/prod.serve.worker.yaml up -d serve

    Exit code 6 where something does not fit.

    \b
    Example:
      envgen nodes check
      envgen nodes check serve --json
    """
    session.variant = variant
    profile = session.profile()
    root = session.loaded().project.root
    name, _, machines = nodes.choose(profile, service)
    began = time.monotonic()
    written = nodes.write_variables(profile, root, machines)
    found = nodes.check(profile, root, name, progress)
    failed = [one for one in found if one.level == "fail"]
    seconds = time.monotonic() - began
    if as_json:
        rows = [
            {"level": one.level, "nodes": list(one.nodes), "message": one.message, "hint": one.hint} for one in found
        ]
        print_json(
            {"service": name, "findings": rows, "failed": len(failed), "seconds": round(seconds, 1), "files": written}
        )
    else:
        colour = wants_colour(sys.stdout, os.environ)
        for one in found:
            mark, code = MARKS[one.level]
            who = f"{one.nodes[0]}: " if len(one.nodes) == 1 else ""
            click.echo(f"  {paint(mark, code, colour)}  {who}{one.message}")
            if one.hint and one.level != "ok":
                click.echo(f"        hint: {one.hint}")
        warned = sum(one.level == "warn" for one in found)
        passed = len(found) - len(failed) - warned
        click.echo(f"{len(failed)} failed, {warned} warned, {passed} passed, {seconds:.1f} s")
    return ExitCode.REFUSED if failed else ExitCode.OK


@command.command()
@click.argument("service", required=False)
@project_options
@variant_option
@timeout_option
@click.option("--stay", is_flag=True, help="Then watch all machines, and take all down when one of them ends.")
@json_option
def up(session: Session, service: str | None, variant: str, timeout: int | None, stay: bool, as_json: bool) -> int:
    """Start SERVICE on all its machines and wait until it really answers.

    First `envgen nodes check`: where something does not fit, nothing is started (exit code 6). Then the workers, then
    the head. While they start all containers are watched: the first one that ends is named, a crash bundle is written,
    and all are taken down (exit code 5). vLLM itself does not notice that another machine has died; --stay goes on
    watching, for a terminal that stays open or a systemd unit.

    \b
    Example:
      envgen nodes up serve
      envgen nodes up serve --stay
    """
    session.variant = variant
    name, _, _ = nodes.choose(session.profile(), service)
    started = cluster.start(session, name, timeout=timeout)
    if as_json:
        print_json(document(session.profile(), name, started, waited=True))
    else:
        report(session.profile(), name, started, waited=True)
    if stay:
        cluster.stay(session, name, progress)
    return 0


@command.command()
@click.argument("service", required=False)
@project_options
@json_option
def down(session: Session, service: str | None, as_json: bool) -> int:
    """Stop and remove SERVICE on all its machines.

    A machine that does not answer is named, with what to type there later (exit code 3).

    \b
    Example:
      envgen nodes down
    """
    name, _, _ = nodes.choose(session.profile(), service)
    gone, left = cluster.stop(session, name)
    if as_json:
        print_json({"removed": gone, "left": left})
    else:
        for line in gone or ([] if left else [f"{name} runs on none of its machines"]):
            click.echo(f"{line} removed" if gone else line)
    for line in left:
        progress(line)
    return ExitCode.ENGINE if left else ExitCode.OK


@command.command()
@click.argument("service", required=False)
@project_options
@json_option
def ps(session: Session, service: str | None, as_json: bool) -> int:
    """Show the containers of SERVICE on all its machines.

    \b
    Example:
      envgen nodes ps
    """
    profile = session.profile()
    name, _, found = nodes.choose(profile, service)
    rows = [
        (node, rank, one) for rank, (node, those) in enumerate(cluster.containers(profile, name, found))
        for one in (those or (None,))
    ]  # fmt: skip
    if as_json:
        print_json(
            [
                {"node": node, "rank": rank, "name": one and one.name, "state": one.state if one else "absent",
                 "health": (one and one.health) or None}
                for node, rank, one in rows
            ]
        )  # fmt: skip
        return 0
    lines = [["NODE", "RANK", "STATE", "HEALTH", "CONTAINER"]]
    for node, rank, one in rows:
        lines.append([node, str(rank), *((one.state, one.health or "-", one.name) if one else ("absent", "-", "-"))])
    for line in table(lines):
        click.echo(line)
    return 0


@command.command()
@click.argument("service", required=False)
@project_options
@click.option("-n", "--tail", type=click.IntRange(1, LARGEST), default=100, help="Lines of each machine.")
def logs(session: Session, service: str | None, tail: int) -> int:
    """Show the last lines of SERVICE on each of its machines, each with the machine's name.

    \b
    Example:
      envgen nodes logs
      envgen nodes logs serve -n 1000
    """
    profile = session.profile()
    name, _, found = nodes.choose(profile, service)
    for node, text in cluster.logs(profile, name, found, tail):
        for line in text.splitlines():
            click.echo(f"{node} | {with_own_colours(line)}")
    return 0
