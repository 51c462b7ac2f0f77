"""`envgen nodes`: the machines of a cluster, and whether they fit together."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict

import click
from click.core import ParameterSource

from envgen.app import nodes
from envgen.app import push as use_case
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import json_option, print_json, project_options, variant_option
from envgen.errors import ExitCode, UsageError
from envgen.text import paint, progress, size, table, wants_colour

MARKS = {"ok": ("ok  ", "32"), "warn": ("warn", "33"), "fail": ("FAIL", "31")}


@click.group(cls=FullGroup, invoke_without_command=True)
@project_options
@json_option
@click.pass_context
def command(context: click.Context, session: Session, as_json: bool) -> int:
    """Prepare the machines that serve one model together (`cluster` of a service). `envgen up` starts it.

    Without a command it lists them, as `envgen nodes list` does.

    \b
    Example:
      envgen nodes -p prod
      envgen nodes push
      envgen nodes check
    """
    if context.invoked_subcommand is None:
        return _list(session, as_json)
    if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in context.params):
        raise UsageError(f"options go behind {context.invoked_subcommand}", hint="envgen nodes check -p NAME")
    return ExitCode.OK


@command.command("list")
@project_options
@json_option
def list_(session: Session, as_json: bool) -> int:
    """List the machines of the profile: whether they answer, have the image, and what runs there.

    Exit code 3 where one does not answer.

    \b
    Example:
      envgen nodes list --profile prod
    """
    return _list(session, as_json)


def _list(session: Session, as_json: bool) -> int:
    found = nodes.rows(session.profile())
    if as_json:
        print_json({"nodes": [asdict(one) for one in found]})
    elif not found:
        progress("the profile describes no machines: write `nodes` into envgen.local.yaml (docs/two-machines.md)")
    else:
        head = ("NODE", "CONTEXT", "ADDRESS", "DOCKER", "IMAGE", "RUNS")
        lines = [(one.name, one.context, one.address, one.docker or "no answer", one.image or "-",
                  " ".join(one.containers) or "-") for one in found]  # fmt: skip
        for line in table([head, *lines]):
            click.echo(line)
    for one in found:
        if one.trouble and not as_json:
            progress(f"{one.name}: {one.trouble}")
    return ExitCode.ENGINE if any(one.trouble for one in found) else ExitCode.OK


@command.command()
@click.argument("service", required=False)
@project_options
@variant_option
@click.option("--deep", is_flag=True, help="Compare all bytes of the weights, not samples: minutes.")
@json_option
def check(session: Session, service: str | None, variant: str, deep: bool, as_json: bool) -> int:
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
    found = nodes.check(profile, root, name, progress, deep=deep)
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
@click.option("--image", is_flag=True, help="The image.")
@click.option("--sources", is_flag=True, help="The mounted checkouts.")
@click.option("--model", is_flag=True, help="The weights.")
@click.option("--caches", is_flag=True, help="The kernels that were compiled at run time.")
@click.option("--force", is_flag=True, help="Also over files of a checkout that were changed on the other machine.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be sent; change nothing.")
@json_option
def push(session: Session, service: str | None, force: bool, dry_run: bool, as_json: bool, **chosen: bool) -> int:
    """Copy what the first machine of SERVICE has to its other machines: image, checkouts, weights, compiled kernels.

    All of it, or what is named. Nothing is built or downloaded a second time; what is the same is left alone. What was
    cut off is never taken for whole, and the same command goes on.

    Of the image only the layers that a machine lacks are sent, over the connection of its Docker context. Files travel
    from machine to machine over the cable, unencrypted, and are compared by their hashes; they need the image on both.
    Files of a checkout that the first machine does not have are removed on the others.

    Exit code 3 where something could not be sent, 6 where it was refused: files of a checkout changed there, no space,
    services that use a cache.

    \b
    Examples:
      envgen nodes push --dry-run
      envgen nodes push
      envgen nodes push --image
    """
    kinds = [kind for kind in use_case.KINDS if chosen[kind]] or use_case.KINDS
    found = use_case.push(session, service, progress, kinds=kinds, dry_run=dry_run, force=force)
    if as_json:
        print_json({"pushed": [asdict(one) for one in found]})
    else:
        for one in found:
            sent = f", {size(one.bytes)} in {one.seconds:.1f} s" if one.bytes else ""
            detail = f": {one.detail}{sent}" if one.detail else ""
            click.echo(f"  {one.state:7}  {one.node}: {one.what}{detail}")
            if one.hint:
                click.echo(f"           hint: {one.hint}")
    states = {one.state for one in found}
    return ExitCode.ENGINE if "failed" in states else ExitCode.REFUSED if "refused" in states else ExitCode.OK
