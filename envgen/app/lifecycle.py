"""Services that exist already: restart, stop and remove them, and run a command beside them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from envgen.app.cluster.machines import machine_of
from envgen.app.failed import failed
from envgen.app.session import Session, with_running_variant
from envgen.app.start import Agree, StartOptions
from envgen.app.up import check, predicted, start_all
from envgen.deployment import Deployment
from envgen.engine.values import Container
from envgen.errors import NotFoundError, ProjectError, ServiceError
from envgen.profile.model import Profile
from envgen.serve import preflight
from envgen.serve.ended import StartFailure
from envgen.serve.launch import Begun, Launcher, Started
from envgen.serve.prepare import prepare
from envgen.text import progress


def restart(session: Session, service: str, timeout: int | None) -> tuple[Profile, Started]:
    """`docker compose restart` for the container that a service has, running or not; wait until it
    answers.

    On several machines, all ranks are stopped before the first is started. NotFoundError without a
    container.
    """
    deployment = machine_of(session.deployment(), service, None)
    deployment.require_name()
    up = f"envgen up {service} {deployment.profile.chosen_variant}"
    containers = deployment.engine.containers(deployment.profile.compose_name, service, all=True)
    if not containers:
        raise NotFoundError(f"{service} has no container to start", hint=up)
    varied = with_running_variant(session, service, lambda: deployment.engine, stopped=True)
    if deployment.node:  # `up` keeps existing containers and starts them
        checked = predicted(check(varied.deployment(), service))
        options = StartOptions(timeout=timeout, again=True)
        ((_, started),) = start_all([checked], lambda _question: False, options)
        return checked.deployment.profile, started
    if varied is not session:  # when it is ready depends on the variant that it was started with
        deployment = varied.deployment().rendered_files()
    container = containers[0]
    preflight.check_again(deployment, container)  # before a running one is stopped
    progress(f"  restarting {container.name}")
    done = deployment.compose.run("restart", service, check=False)
    if done.code:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        if refused := preflight.changed_meanwhile(deployment, service, lines):
            raise refused
        reason = "".join(lines[-1:])
        if preflight.network_gone(lines):
            reason = (
                "its container belongs to a network that was removed (by `docker network prune`?)"
            )
            up = f"to create the container anew: {up}"
        raise ServiceError(f"{service} was not started: {reason}", hint=up)
    launcher = Launcher(deployment, service, progress)
    try:
        awaited = launcher.wait(container.id, timeout)
    except StartFailure as failure:  # it is kept: it was there before
        raise failed(deployment, service, failure) from None
    return deployment.profile, launcher.started(
        Begun(container, launcher.began, already=False, created=False), awaited
    )


def halt(deployment: Deployment, names: Sequence[str]) -> list[str]:
    """Stop the running containers of ``names`` (default: all); keep them for `start`. Returns their
    names.
    """
    deployment.require_name()
    running = deployment.containers(names, all=False)
    for container in running:
        progress(f"  stopping {deployment.named(container.name)}")
    if running:
        deployment.by_name.run("stop", *names)
        _require_none(deployment, running, "running", all=False)
    return [one.name for one in running]


def _require_none(
    deployment: Deployment, asked: Sequence[Container], state: str, *, all: bool
) -> None:
    """ServiceError if the engine still shows one of the containers that Compose was asked to stop
    or remove.
    """
    there = {one.id for one in deployment.containers(all=all)}
    if left := [one.name for one in asked if one.id in there]:
        hint = " ".join(deployment.docker("rm", "--force", *left))
        raise ServiceError(f"still {state}: {', '.join(left)}", hint=hint)


@dataclass(frozen=True)
class Removed:
    """The containers and volumes that were removed, or would be. ``kept``: volume -> the folder
    that created it.
    """

    containers: tuple[str, ...]
    volumes: tuple[str, ...]
    kept: Mapping[str, Path]


_ASKING = threading.Lock()  # several machines are cleaned up at once, and the terminal is one


def remove(
    deployment: Deployment, names: Sequence[str], *, volumes: bool, dry_run: bool, agree: Agree
) -> Removed:
    """Stop and remove the containers of ``names`` (default: everything of the profile).

    ``volumes``: its volumes, too. ``agree`` is asked about those that another project folder
    created.
    """
    engine, compose = deployment.engine, deployment.by_name
    deployment.require_name()
    containers = deployment.containers(names, all=True)
    names_there = tuple(sorted(one.name for one in containers))
    known = _volumes(deployment) if volumes else {}
    there = [str(one.get("name", key)) for key, one in known.items() if not one.get("external")]
    doomed = sorted(name for name in there if engine.volume(name) is not None)
    kept = {name: folder for name in doomed if (folder := deployment.volume_elsewhere(name))}
    if kept and not dry_run:
        owners = [
            f"  volume {deployment.named(name)} was created by {folder}"
            for name, folder in kept.items()
        ]
        with _ASKING:
            kept = {} if agree("\n".join([*owners, "Delete these, too?"])) else kept
    removed = Removed(names_there, tuple(name for name in doomed if name not in kept), kept)
    if dry_run:
        return removed
    for name in names_there:
        progress(f"  stopping and removing {deployment.named(name)}")
    if not names:
        compose.run("down", "--remove-orphans")
        for name in removed.volumes:
            engine.remove_volume(name)
    elif names_there:
        compose.run("rm", "--stop", "--force", *names)
    _require_none(deployment, containers, "there", all=True)
    return removed


def _volumes(deployment: Deployment) -> Mapping[str, Any]:
    """The volumes of the Compose files; those of a broken file of the profile's own stay."""
    try:
        return deployment.document.get("volumes") or {}
    except ProjectError as error:
        progress(f"note: volumes of {deployment.profile.compose} stay: {error.problems[0]}")
        return deployment.rendered_compose.document.get("volumes") or {}


def one_off(
    deployment: Deployment, service: str, argv: Sequence[str], options: Sequence[str], *, tty: bool
) -> int:
    """Run a command in a new container with the image, mounts and environment of a service. Returns
    its exit code.

    The container is removed afterwards, however the command ends.
    """
    deployment = machine_of(deployment, service, None)
    deployment.require_name()
    preflight.check_once(deployment, service)
    compose = deployment.to_start(service).compose
    from envgen.jitcache.space import with_kernels  # only for this command

    with_kernels(deployment, partial(prepare, deployment, service))
    terminal = () if tty and sys.stdin.isatty() and sys.stdout.isatty() else ("-T",)
    return compose.interactive(
        "--progress=quiet", "run", "--rm", "--no-deps", *terminal, *options, service, *argv
    )
