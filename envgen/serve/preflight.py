"""The checks of one machine before a service starts there, all problems at once."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine import host
from envgen.engine.gpu import NO_GPU
from envgen.engine.values import Container
from envgen.errors import EnvgenError, ExitCode, Problem, RefusedError
from envgen.lock.model import with_version
from envgen.profile.exposure import API_KEY, asks_for_key, exposed, on_loopback, renumbered
from envgen.profile.model import REPOSITORIES, GpuMode, Mode, Profile, Source
from envgen.profile.values import PortMapping
from envgen.serve import memory

Holder = Callable[[PortMapping], str]  # who uses a port, in words; "" if it is free
# "Bind for 127.0.0.1:8000 failed: port is already allocated", "failed to bind host port
# 127.0.0.1:8000/tcp: address already in use", "failed to bind host port for
# 127.0.0.1:8000:172.18.0.2:8000/tcp: ..."
_BIND = re.compile(
    r"[Bb]ind (?:for|host port(?: for)?) \S*?:(\d{1,5})(?:[:/ ].*)? .*(?:already allocated|already in use)"
)
# runc: 'error mounting "/src/lib" to rootfs at "/lib": stat /src/lib: no such file or directory';
# before it the engine, of a container that has ended: 'bind source path does not exist:
# /src/lib/.git'
_VANISHED = re.compile(
    r'error mounting "([^"]+)" to rootfs .*no such file or directory|bind source path does not exist: (.+)'
)
# 'failed to set up container networking: network 1c9f... not found', with the ID of the network
_NETWORK = re.compile(r"network [0-9a-f]{64} not found")


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
    deployment: Deployment,
    name: str,
    mine: Sequence[Container],
    weights: Callable[[], Iterable[Problem]],
) -> list[str]:
    """Check image, mounts, ports, GPU, files and weights. PreflightError with every problem.
    Returns notes to print.

    ``mine``: the containers of the service that run. ``weights``: what keeps it from loading its
    model; asked only if the image exists and it does not run. Nothing is started, pulled or
    written.
    """
    profile = deployment.profile
    for container in mine:
        if container.state == "paused":
            raise RefusedError(
                f"{container.service} is paused", hint=f"docker unpause {container.name}"
            )
    image, problems = deployment.image_problems, [*refusals(deployment, name, running=bool(mine))]
    if deployment.is_local:
        problems += ports(deployment, name, mine)
    looked = profile.services[name].model is not None and not mine and deployment.image is not None
    unloadable = tuple(weights()) if looked else ()
    if image or problems or unloadable:
        raise PreflightError(name, (*image, *problems, *unloadable), only_lacking=not problems)
    told = list[str]()
    if deployment.is_local and not mine:
        needed, unified = profile.services[name].needs_memory, profile.gpu is not GpuMode.NONE
        told += memory.notes(
            name, needed, LiveService(deployment, name).memory_floor, unified=unified
        )
    if deployment.gpu is GpuMode.NONE and profile.gpu is GpuMode.AUTO:
        told.append(
            f"{name} starts without a GPU: {NO_GPU} (`gpu: required` refuses then, `gpu: none` is silent)"
        )
    return told


def notes(deployment: Deployment, name: str, *, running: bool) -> Iterator[str]:
    """Notes that hold on one machine and on several: patches, ports that are open to the network,
    secrets.
    """
    profile = deployment.profile
    if profile.mounted_sources:
        from envgen.patches.checkout import lacking  # git, and all that applies patches

        for source, lacks in lacking(profile, deployment.root).items():
            apply = f"envgen patch apply {source} --profile {profile.name}"
            yield f"the checkout of {source} lacks {', '.join(lacks)}, or has edits in their lines: {apply}"
    yield from _exposure(deployment.effective, name)
    unset = [secret for secret in profile.secrets if secret not in deployment.shell]
    if unset and not running:
        yield f"not set in this terminal or in .env: {', '.join(unset)}"


def _exposure(profile: Profile, name: str) -> list[str]:
    """A note if every machine in the network can reach the service."""
    service, open_to_all = profile.services[name], exposed(profile, name)
    if not open_to_all:
        return []
    near = (
        f"publish it as '{on_loopback(service)}'"
        if service.network is None
        else "write args: {host: 127.0.0.1}"
    )
    return [
        open_to_all
        + ("" if asks_for_key(profile, service) else f"; {near}, or add {API_KEY} to `secrets`")
    ]


def check_once(deployment: Deployment, name: str) -> None:
    """What a one-off container needs: image, checkouts, files, and the GPU of the profile.
    PreflightError.
    """
    problems = (*deployment.image_problems, *refusals(deployment, name, running=True))
    if problems:
        raise PreflightError(name, problems)


def refusals(deployment: Deployment, name: str, *, running: bool) -> tuple[Problem, ...]:
    """What `up` refuses besides an old image and taken ports: checkouts, files, memory, the GPU.

    ``running``: the service already has its memory.
    """
    problems = list[Problem]()
    own = deployment.profile.compose is not None
    described = (deployment.document.get("services") or {}).get(name) or {} if own else {}
    copies = described.get("scale") or ((described.get("deploy") or {}).get("replicas"))
    if copies not in (None, 1):
        hint = "leave it out; for a second server, describe a second service"
        problems.append(
            Problem(f"{deployment.profile.compose} starts {copies} containers of {name}", hint=hint)
        )
    if deployment.is_local:  # a remote engine's machine can't be checked from here
        problems += _mounts(deployment)
        problems += _own_mounts(deployment, name)
        problems += deployment.missing_files
        needed = deployment.profile.services[name].needs_memory
        problems += (
            [] if running else memory.problems(needed, LiveService(deployment, name).memory_floor)
        )
    return (*problems, *([deployment.lacks_gpu] if deployment.lacks_gpu else []))


def check_again(deployment: Deployment, container: Container) -> None:
    """PreflightError if folders that ``container`` mounts are gone: it would stop and not start
    again.
    """
    if deployment.is_local:
        mounted = {mount.source for mount in container.mounts}
        problems = [
            *_mounts(deployment, mounted),
            *_own_mounts(deployment, container.service, mounted),
        ]
        if problems:
            raise PreflightError(container.service, tuple(problems))


def _place(root: Path, path: str) -> Path:
    """The absolute path of a folder of the profile, as Compose resolves it."""
    return Path(os.path.normpath(root / Path(path).expanduser()))


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
    if not version:  # the release that fits is what the others ask for
        return f"envgen lock -p {deployment.profile.name}` and this again: it names the release to clone"
    words = (
        "git",
        "clone",
        "--branch",
        f"v{version}",
        "--recurse-submodules",
        REPOSITORIES[source.distribution],
    )
    return shlex.join([*words, os.path.relpath(folder)]) + "`"


def _mounts(deployment: Deployment, among: Collection[str] | None = None) -> Iterator[Problem]:
    """What is wrong with checkouts; with ``among``, only with those folders."""
    profile, root = deployment.profile, deployment.root
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        folder, hint = _place(root, source.origin.checkout.path), _elsewhere(profile, name)
        if among is not None and str(folder) not in among:
            continue
        if not folder.exists() and (clone := _clone(deployment, source, folder)):
            hint = f"`{clone}, or {hint}"
        if not folder.is_dir():
            yield Problem(f"sources.{name}: folder {folder} does not exist", hint=hint)
        elif not os.access(folder, os.R_OK | os.X_OK):
            yield Problem(f"sources.{name}: {folder} can't be read", hint=f"ls -ld {folder}")
        elif not any(folder.iterdir()):
            yield Problem(f"sources.{name}: {folder} is empty", hint=hint)
        elif not _has_package(folder, source.package):
            others = [
                other for other, one in profile.sources.items() if _has_package(folder, one.package)
            ]
            instead = f"; it looks like {others[0]}" if others else ""
            yield Problem(
                f"sources.{name}: {folder} has no Python package {source.package}{instead}",
                hint=hint,
            )


def _own_mounts(
    deployment: Deployment, name: str, among: Collection[str] | None = None
) -> Iterator[Problem]:
    for key, mount in deployment.profile.services[name].mounts.items():
        place = _place(deployment.root, mount.host.path)
        if not place.exists() and (among is None or str(place) in among):
            where = f"services.{name}.mounts.{key}"
            yield Problem(
                f"{where}: {place} does not exist", hint=f"make it, or correct {where}.host"
            )


def _has_package(folder: Path, package: str) -> bool:
    places = [folder / sub / package for sub in ("", "src")]
    return any(
        (p / "__init__.py").is_file() or p.with_name(f"{package}.py").is_file() for p in places
    )


def ports(deployment: Deployment, name: str, mine: Sequence[Container]) -> Iterator[Problem]:
    """Ports of the service that something other than its own containers ``mine`` uses."""
    profile = deployment.effective
    service, own = (
        profile.services[name],
        {port.host for container in mine for port in container.ports},
    )
    wanted = [port for port in service.host_ports if port.host not in own]
    if not wanted or (
        service.network is not None and mine
    ):  # then the listener is the service itself
        return
    holder = holders(deployment)
    taken = {port: found for port in wanted if (found := holder(port))}
    hint = _free_ports(profile, name, holder, *(port.host for port in taken))
    if service.ports != deployment.profile.services[name].ports:
        hint = f"stop it, or take another one in {profile.compose}"
    for port, who in taken.items():
        yield Problem(f"port {port.host} is taken by {who}", hint=hint)


def _free_ports(profile: Profile, name: str, holder: Holder, *taken: int) -> str:
    """The hint for taken ports: all ports of the service, the taken ones with the next free number."""
    service = profile.services[name]
    if service.network is not None:
        return "stop it, or let the server listen on another port"
    used, numbers = {port.host for one in profile.services.values() for port in one.ports}, {}
    for port in service.ports:
        if port.host in taken:
            others = (
                replace(port, host=number)
                for number in range(port.host + 1, 65536)
                if number not in used
            )
            numbers[port.host] = next(
                (other.host for other in others if not holder(other)), port.host
            )
            used.add(numbers[port.host])
    return (
        f'stop it, or take a free one: --set "services.{name}.ports={renumbered(service, numbers)}"'
    )


def changed_meanwhile(
    deployment: Deployment, name: str, lines: Sequence[str]
) -> RefusedError | None:
    """The check's error for what Compose printed, if a port was taken or a mounted folder removed
    since the check.
    """
    profile, root = deployment.profile, deployment.root
    gone = next((found[1] or found[2] for line in lines if (found := _VANISHED.search(line))), None)
    if gone is None:
        refused = {int(found[1]) for line in lines if (found := _BIND.search(line))}
        port = next(
            (one for one in deployment.effective.services[name].ports if one.host in refused), None
        )
        if port is None:
            return None
        holder = holders(deployment)
        who = holder(port) or "another program"
        taken = f"{name} was not started: port {port.host} was taken by {who} in the meantime"
        return RefusedError(taken, hint=_free_ports(deployment.effective, name, holder, port.host))
    path, up = Path(gone.strip()), f"envgen up {name} {profile.chosen_variant}"
    for source, mounted in profile.mounted_sources.items():
        assert mounted.origin.checkout is not None
        folder = _place(root, mounted.origin.checkout.path)
        if path.is_relative_to(folder) and not folder.is_dir():
            hint = f"bring it back, or {_elsewhere(profile, source)}; then: {up}"
            return RefusedError(
                f"{name} was not started: sources.{source}: folder {folder} does not exist",
                hint=hint,
            )
    why = f"its container was made with {path}, which is no longer there"
    return RefusedError(
        f"{name} was not started: {why}", hint=f"to make it with what the profile names: {up}"
    )


def network_gone(lines: Sequence[str]) -> bool:
    """Whether Compose failed to start an existing container whose network was removed, as `docker
    network prune` does.

    Compose creates the network again, but the container keeps the ID of the old one.
    """
    return any(_NETWORK.search(line) for line in lines)


def holders(deployment: Deployment) -> Holder:
    """Who uses a port of the engine's machine. On a remote one, only its containers are known."""
    local = deployment.is_local
    everybody = deployment.engine.containers()

    def holder(port: PortMapping) -> str:
        for container in everybody:  # a port that a firewall rule forwards has no listener
            if any(one.host == port.host for one in container.ports):
                return f"container {container.name}"
        taken = local and host.is_taken(port.host, port.address)
        return f"another program (`sudo ss -ltnp sport = :{port.host}` shows it)" if taken else ""

    return holder


def is_development(profile: Profile) -> bool:
    """Whether sources are mounted and installed into the overlay."""
    return profile.mode is Mode.DEVELOPMENT and bool(profile.mounted_sources)
