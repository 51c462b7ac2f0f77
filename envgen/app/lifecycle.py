"""Services that exist already: restart, stop and remove them, and run a command beside them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.app.cluster.machines import machine_of
from envgen.app.session import Session, with_running_variant
from envgen.app.start import StartOptions, prepare_caches
from envgen.app.up import start_one
from envgen.deployment import Deployment, LiveService
from envgen.engine.values import Container
from envgen.errors import NotFoundError, ProjectError, ServiceError
from envgen.serve import memory, preflight
from envgen.serve.start import StartResult
from envgen.text import progress


def restart(session: Session, name: str, timeout: int | None) -> tuple[LiveService, StartResult]:
    """Stop a service that has a container, running or not, and start it as `up` does. What would
    not start again is not stopped.

    On several machines, all ranks are stopped before the first is started. NotFoundError without a
    container.
    """
    service = machine_of(LiveService(session.deployment(), name))
    service.deployment.require_name()
    containers = service.containers(all=True)
    if not containers:
        raise NotFoundError(f"{name} has no container to start", hint=service.hint("up"))
    varied = with_running_variant(session, name, lambda: service.engine, stopped=True)
    service = LiveService(varied.deployment(), name)
    options = StartOptions(timeout=timeout, again=True)
    checked, started = start_one(service, options, predict=True)
    return checked.service, started


def start_beside(deployment: Deployment, names: Sequence[str]) -> None:
    """Start services of the profile's own Compose file; nothing is known of when they answer."""
    deployment.require_name()
    for name in names:
        progress(f"  starting {name}, of {deployment.profile.compose}")
    words = ("up", "--detach", "--no-deps", *names)
    done = deployment.compose.stream(*words, on_line=progress)
    if done.code:
        raise ServiceError(f"not started: {', '.join(names)} (exit code {done.code})")


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
        _say_what_is_held(deployment)
    return [one.name for one in running]


def _require_none(
    deployment: Deployment, asked: Sequence[Container], state: str, *, all: bool
) -> None:
    """ServiceError if the engine still shows one of the containers that Compose was asked to stop
    or remove.
    """
    there = [container.id for container in deployment.containers(all=all)]
    left = [container.name for container in asked if container.id in there]
    if left:
        command = deployment.docker("rm", "--force", *left)
        names = ", ".join(left)
        raise ServiceError(f"still {state}: {names}", hint=shlex.join(command))


@dataclass(frozen=True)
class Removed:
    """The containers and volumes that were removed, or would be. ``kept``: volume -> the folder
    that created it.
    """

    containers: tuple[str, ...]
    volumes: tuple[str, ...]
    kept: Mapping[str, Path]


def remove(
    deployment: Deployment, names: Sequence[str], *, volumes: bool, dry_run: bool
) -> Removed:
    """Stop and remove the containers of ``names`` (default: everything of the profile).

    ``volumes``: its volumes, too, without those that another project folder created.
    """
    engine = deployment.engine
    compose = deployment.by_name
    deployment.require_name()
    containers = deployment.containers(names, all=True)
    names_there = tuple(sorted(one.name for one in containers))
    there = _volumes(deployment) if volumes else ()
    doomed = []
    kept = {}
    for name in sorted(there):
        if engine.volume(name) is None:
            continue
        folder = deployment.volume_elsewhere(name)
        if folder:
            kept[name] = folder
        else:
            doomed.append(name)
    removed = Removed(names_there, tuple(doomed), kept)
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
    if containers:
        _say_what_is_held(deployment)
    return removed


def _say_what_is_held(deployment: Deployment) -> None:
    """Wait until the memory that ended servers shared with the GPU is free, or say that it is not."""
    if deployment.is_local and deployment.profile.shares_memory:
        for note in memory.not_returned():
            progress(f"note: {note}")


def _volumes(deployment: Deployment) -> list[str]:
    """The volumes of the Compose files; those of a broken file of the profile's own stay."""
    try:
        document = deployment.document
    except ProjectError as error:
        progress(f"note: volumes of {deployment.profile.compose} stay: {error.problems[0]}")
        document = deployment.rendered_compose.document
    names = []
    for key, volume in (document.get("volumes") or {}).items():
        if not volume.get("external"):
            names.append(str(volume.get("name", key)))
    return names


def one_off(service: LiveService, argv: Sequence[str], options: Sequence[str], *, tty: bool) -> int:
    """Run a command in a new container with the image, mounts and environment of a service. Returns
    its exit code.

    The container is removed afterwards, however the command ends.
    """
    service = machine_of(service)
    service.deployment.require_name()
    preflight.check_once(service)
    compose = service.to_start().deployment.compose
    prepare_caches(service)
    words = ["--progress=quiet", "run", "--rm", "--no-deps"]
    if not (tty and sys.stdin.isatty() and sys.stdout.isatty()):
        words.append("-T")
    return compose.interactive(*words, *options, service.name, *argv)
