"""The checks of one machine before a service starts there, all problems at once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envgen.deployment import Deployment, LiveService
from envgen.engine import host
from envgen.engine.gpu import NO_GPU
from envgen.engine.owner import folder_of, same
from envgen.engine.values import COMPOSE_PROJECT, COMPOSE_SERVICE, Container, ContainerRow
from envgen.errors import EnvgenError, ExitCode, Problem, RefusedError
from envgen.lock.model import with_version
from envgen.profile.exposure import API_KEY, asks_for_key, exposed, on_loopback
from envgen.profile.model import REPOSITORIES, GpuMode, Mode, Profile, Source
from envgen.profile.values import PortMapping
from envgen.serve import memory

Weights = Callable[[], Iterable[Problem]]
Holder = Callable[[PortMapping], str]  # who uses a port, in words; "" if it is free


class PreflightError(EnvgenError):
    """The service can't start; all reasons. ``only_lacking``: nothing stands in the way but an
    image or weights that
    `up` can make."""

    exit_code = ExitCode.REFUSED

    def __init__(
        self, service: str, problems: tuple[Problem, ...], *, only_lacking: bool = False
    ) -> None:
        super().__init__(problems=(Problem(f"{service} was not started:"), *problems))
        self.only_lacking = only_lacking


def check(
    service: LiveService,
    rows: Sequence[ContainerRow],
    containers: Sequence[Container],
    weights: Weights,
) -> list[str]:
    """Check image, mounts, ports, GPU, files and weights. PreflightError with every problem.
    Returns notes to print.

    ``rows``: the engine's containers. ``containers``: the containers of the service that run.
    ``weights``: what keeps it from loading its model; asked only if the image exists and it does
    not run. Nothing is started, pulled or written.
    """
    deployment = service.deployment
    profile = service.profile
    name = service.name
    for container in containers:
        if container.state == "paused":
            hint = f"docker unpause {container.name}"
            raise RefusedError(f"{name} is paused", hint=hint)
    makeable = list(deployment.image_problems)
    problems = list(refusals(service, running=bool(containers)))
    if deployment.is_local:
        problems += ports(service, containers, holders(service, rows))
    if service.described.model is not None and not containers and deployment.image is not None:
        makeable += weights()
    if makeable or problems:
        raise PreflightError(name, (*makeable, *problems), only_lacking=not problems)
    notes = []
    if deployment.is_local and not containers:
        needed = service.described.needs_memory
        if needed:
            has_gpu = profile.gpu is not GpuMode.NONE
            notes += memory.in_page_cache(needed.bytes, unified=has_gpu)
        if profile.shares_memory:
            notes += memory.not_returned()
    if deployment.gpu is GpuMode.NONE and profile.gpu is GpuMode.AUTO:
        modes = "`gpu: required` makes this an error, `gpu: none` hides it"
        notes.append(f"{name} starts without a GPU: {NO_GPU} ({modes})")
    return notes


def notes(service: LiveService, *, running: bool) -> Iterator[str]:
    """Notes that hold on one machine and on several: patches, ports that are open to the network,
    secrets.
    """
    deployment = service.deployment
    profile = service.profile
    if profile.mounted_sources:
        from envgen.patches.checkout import command_for, lacking  # git, and all for patches

        for source, lacks in lacking(profile, deployment.root).items():
            folder = Path(profile.checkouts[source].path).expanduser()
            apply = command_for(profile.sources[source], str(folder), lacks)
            patches = ", ".join(lacks)
            yield f"the checkout of {source} lacks {patches}, or has edits in their lines: {apply}"
    open_to_all = exposed(deployment.effective, service.name)
    if open_to_all:
        yield open_to_all + _closing(service)
    unset = [secret for secret in profile.secrets if secret not in deployment.shell]
    if unset and not running:
        yield f"not set in this terminal or in .env: {', '.join(unset)}"


def _closing(service: LiveService) -> str:
    """How a service that every machine in the network can reach is closed; "" if it asks for a key."""
    if asks_for_key(service.deployment.effective, service.effective):
        return ""
    near = "write args: {host: 127.0.0.1}"
    if service.effective.network is None:
        near = f"publish it as '{on_loopback(service.effective)}'"
    return f"; {near}, or add {API_KEY} to `secrets`"


def check_once(service: LiveService) -> None:
    """What a one-off container needs: image, checkouts, files, and the GPU of the profile.
    PreflightError.
    """
    problems = (*service.deployment.image_problems, *refusals(service, running=True))
    if problems:
        raise PreflightError(service.name, problems)


def refusals(service: LiveService, *, running: bool) -> tuple[Problem, ...]:
    """What `up` refuses besides an old image and taken ports: checkouts, files, memory, the GPU.

    ``running``: the service already has its memory.
    """
    deployment = service.deployment
    own = service.profile.compose
    problems = []
    if own is not None:
        document = (deployment.document.get("services") or {}).get(service.name) or {}
        copies = document.get("scale") or (document.get("deploy") or {}).get("replicas")
        if copies not in (None, 1):
            hint = "leave it out; for a second server, describe a second service"
            problems.append(
                Problem(f"{own} starts {copies} containers of {service.name}", hint=hint)
            )
    if deployment.is_local:  # a remote engine's machine can't be checked from here
        problems += _mounts(deployment)
        problems += _own_mounts(service)
        problems += deployment.missing_files
        needed = service.described.needs_memory
        if needed and not running:
            problems += memory.too_little(needed.bytes)
        if not running:
            problems += memory.too_low(service.memory_floor)
    if deployment.lacks_gpu:
        problems.append(deployment.lacks_gpu)
    return tuple(problems)


def _elsewhere(profile: Profile, name: str) -> str:
    """The hint for a checkout that is somewhere else."""
    wanted = f"sources: {{{name}: {{origin: {{checkout: /path/to/{name}}}}}}}"
    return f"write `{wanted}` below profiles.{profile.name} in envgen.local.yaml"


def _clone(deployment: Deployment, source: Source, folder: Path) -> str:
    """The hint for a checkout for the `binaries` of a source, after its first quote; "" if it is
    not known.
    """
    if source.binaries is None or source.distribution not in REPOSITORIES:
        return ""
    version = with_version(source.binaries, deployment.locked).version
    words = ("--recurse-submodules", REPOSITORIES[source.distribution], os.path.relpath(folder))
    if version:
        return shlex.join(["git", "clone", "--branch", f"v{version}", *words]) + "`"
    # The release that fits is what vLLM asks for; its checkout names it.
    profile = deployment.profile
    others = [
        at for name, at in profile.checkouts.items() if profile.sources[name].package == "vllm"
    ]
    if not others:
        return f"envgen lock -p {profile.name}` and this again: it names the release to clone"
    asks = others[0].below(deployment.root) / "requirements" / "cuda.txt"
    wanted = f"s/^{source.distribution}==//p"
    release = f'"v$(sed -n {wanted} {shlex.quote(os.path.relpath(asks))})"'
    return f"git clone --branch {release} {shlex.join(words)}`"


def _mounts(deployment: Deployment) -> Iterator[Problem]:
    """What is wrong with checkouts."""
    for name, checkout in deployment.profile.checkouts.items():
        folder = checkout.below(deployment.root)
        yield from _checkout(deployment, name, deployment.profile.sources[name], folder)


def _checkout(deployment: Deployment, name: str, source: Source, folder: Path) -> Iterator[Problem]:
    profile = deployment.profile
    where = f"sources.{name}"
    hint = _elsewhere(profile, name)
    if not folder.is_dir():
        clone = "" if folder.exists() else _clone(deployment, source, folder)
        offered = f"`{clone}, or {hint}" if clone else hint
        yield Problem(f"{where}: folder {folder} does not exist", hint=offered)
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield Problem(f"{where}: {folder} can't be read", hint=f"ls -ld {folder}")
    elif not any(folder.iterdir()):
        yield Problem(f"{where}: {folder} is empty", hint=hint)
    elif not _has_package(folder, source.package):
        others = [key for key, one in profile.sources.items() if _has_package(folder, one.package)]
        instead = f"; it looks like {others[0]}" if others else ""
        message = f"{where}: {folder} has no Python package {source.package}{instead}"
        yield Problem(message, hint=hint)


def _own_mounts(service: LiveService) -> Iterator[Problem]:
    for key, mount in service.described.mounts.items():
        place = mount.host.below(service.deployment.root)
        if not place.exists():
            where = f"services.{service.name}.mounts.{key}"
            hint = f"make it, or correct {where}.host"
            yield Problem(f"{where}: {place} does not exist", hint=hint)


def _has_package(folder: Path, package: str) -> bool:
    places = [folder / sub / package for sub in ("", "src")]
    return any(
        (p / "__init__.py").is_file() or p.with_name(f"{package}.py").is_file() for p in places
    )


def ports(
    service: LiveService, containers: Sequence[Container], holder: Holder
) -> Iterator[Problem]:
    """Ports of the service that ``holder`` says are taken. ``containers``: its own that run."""
    effective = service.effective
    if effective.network is not None and containers:  # then the listener is the service itself
        return
    taken = {port: who for port in effective.host_ports if (who := holder(port))}
    if not taken:
        return
    hint = _other_port(service)
    for port, who in taken.items():
        yield Problem(f"port {port.host} is taken by {who}", hint=hint)


def _other_port(service: LiveService) -> str:
    """The hint for taken ports."""
    effective = service.effective
    if effective.network is not None:
        return "stop it, or let the server listen on another port"
    if effective.ports != service.described.ports:
        return f"stop it, or take another one in {service.profile.compose}"
    others = [str(replace(port, host=port.host + 1)) for port in effective.ports]
    return f'stop it, or take others: --set "services.{service.name}.ports={others}"'


def holders(service: LiveService, rows: Sequence[ContainerRow]) -> Holder:
    """Who uses a port of the engine's machine; not the service's own container, which another
    envgen may be starting. On a remote machine, only containers are known.
    """
    deployment = service.deployment
    own = {COMPOSE_PROJECT: service.profile.compose_name, COMPOSE_SERVICE: service.name}

    def holder(port: PortMapping) -> str:
        for row in rows:  # a port that a firewall rule forwards has no listener
            if port.host in row.ports:
                if own.items() <= row.labels.items():
                    return ""
                folder = folder_of(row)
                name = row.labels.get(COMPOSE_PROJECT, "")
                ours = folder is not None and same(folder, deployment.root)
                return f"container {row.name}" + f" (docker compose -p {name} down)" * ours
        if deployment.is_local and host.is_taken(port.host, port.address):
            return f"another program (`sudo ss -ltnp sport = :{port.host}` shows it)"
        return ""

    return holder


def is_development(profile: Profile) -> bool:
    """Whether sources are mounted and installed into the overlay."""
    return profile.mode is Mode.DEVELOPMENT and bool(profile.mounted_sources)
