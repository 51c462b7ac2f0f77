"""The Compose project of a profile on a host: its files, containers and volumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envgen import files
from envgen.binding import JsonObject
from envgen.deployment.host import on_machine
from envgen.deployment.image import BuiltImage
from envgen.engine.compose import Compose
from envgen.engine.owner import FOLDER, elsewhere, host_user, is_gone, ours, same
from envgen.engine.values import COMPOSE_PROJECT, COMPOSE_VOLUME, Container
from envgen.errors import (
    Place,
    Problem,
    ProcessError,
    ProjectError,
    RefusedError,
    UsageError,
)
from envgen.profile.compose_file import effective, own_file
from envgen.profile.model import GpuMode, Profile
from envgen.profile.service import Cluster
from envgen.profile.tree import label_of
from envgen.render import environment as names
from envgen.render.compose import cluster_file, gpu_devices, written_mode
from envgen.text import did_you_mean

ENGINE_FILE = "compose/this-engine-{}.yaml"  # by its content: several engines may be in use at once


@dataclass(frozen=True)
class Deployment(BuiltImage):
    """A profile, of one folder, on one host. Its name on the engine belongs to the folder that has
    containers under it: folders with the same `name:` would use each other's.
    """

    @cached_property
    def compose(self) -> Compose:
        """The Compose project of all services."""
        return self._compose(tuple(self.profile.services))

    def rendered_files(self) -> Deployment:
        """The same, once its files are rendered: raises the errors of rendering before anything
        else is done.
        """
        _ = self.compose
        return self

    def to_start(self, service: str) -> Deployment:
        """The same with Compose files for a start of ``service``."""
        return self.with_cached(compose=self._compose((service,)))

    def _compose(self, services: Sequence[str], *, own: bool = True) -> Compose:
        """The rendered Compose files for this engine, with this machine's paths and user."""
        profile = self.profile
        root = self.root
        folder = self.workspace.folder
        files: list[Path | None] = [folder / profile.compose_file]
        files.append(engine_file(profile, folder, self.gpu))
        if own:
            files.append(own_file(profile, root))
        env = {**self.dotenv, **names.compose_environment(profile, root)}
        if any(profile.user_of(name) == "host" for name in profile.services):
            uid, gid = host_user(self.engine)
            env[names.UID_VARIABLE] = str(uid)
            env[names.GID_VARIABLE] = str(gid)
        for name in services if self.node else ():
            cluster = profile.services[name].cluster
            if cluster is None or self.node not in cluster.nodes:
                continue
            for part in self._parts(cluster):
                file = cluster_file(profile, name, part)
                files.append(folder / file)
            env |= rank_environment(profile, root, cluster, self.node)
        # Relative paths in the rendered file start from compose/, wherever the copy that is used is.
        written = list(filter(None, files))
        return Compose(self.endpoint, written, root / "compose", profile.compose_name, env)

    def _parts(self, cluster: Cluster) -> list[str]:
        """What this machine is in a cluster."""
        parts = ["head" if self.node == cluster.nodes[0] else "worker"]
        if self.profile.nodes[self.node].rdma:
            parts.append("rdma")
        return parts

    @property
    def by_name(self) -> Compose:
        """The Compose project as the engine has it, without files: neither a broken one nor a full
        disk matters.
        """
        return Compose(self.endpoint, (), self.root, self.profile.compose_name)

    @cached_property
    def effective(self) -> Profile:
        """The profile as Compose understands it together with the profile's own Compose file."""
        if self.profile.compose is None:
            return self.profile
        return effective(self.profile, self.document.get("services") or {})

    @property
    def document(self) -> JsonObject:
        """What Compose makes of all files. ProjectError where it refuses the profile's own."""
        try:
            return self.compose.document
        except ProcessError as error:
            own = own_file(self.profile, self.root)
            if own is None:
                raise
            lines = error.stderr.strip().splitlines()
            why = lines[-1] if lines else f"exit code {error.code}"
            hint = "paths in it start at compose/: ../FILE is one beside envgen.yaml"
            raise ProjectError(
                [Problem(f"Compose refuses it: {why}", Place(label_of(own)), hint)]
            ) from None

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """The services that the profile's own Compose file adds."""
        services = self.document.get("services") or {} if self.profile.compose else {}
        return tuple(name for name in services if name not in self.profile.services)

    def of_profile(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that the profile itself has. UsageError for one that is nowhere."""
        own = [name for name in names if name in self.profile.services]
        for name in names:
            if name not in own and name not in self.beside:
                known_service(self.profile, name)
        return own

    @property
    def rendered_compose(self) -> Compose:
        """``compose`` without the profile's own file."""
        return self._compose(tuple(self.profile.services), own=False)

    def containers(self, services: Sequence[str] = (), *, all: bool) -> tuple[Container, ...]:
        """The containers of ``services`` (default: of the whole profile). UsageError for an unknown
        name.
        """
        self.of_profile(services)
        containers = self.ours(self.engine.containers(self.profile.compose_name, all=all))
        return tuple(one for one in containers if not services or one.service in services)

    def ours(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """``containers`` without those of another project folder."""
        return ours(containers, self.root, local=self.is_local)

    def create_volume(
        self, name: str, key: str, driver: str = "", options: Mapping[str, str] | None = None
    ) -> None:
        """Create a volume that knows this folder, unless there is one of that name. ``key``: its
        name in Compose files.

        Compose would warn at each start of a volume without its labels.
        """
        labels = {
            COMPOSE_PROJECT: self.profile.compose_name,
            COMPOSE_VOLUME: key,
            FOLDER: str(self.root),
        }
        self.engine.create_volume(name, labels, driver, options)

    def volume_elsewhere(self, name: str) -> Path | None:
        """The other project folder that created a volume; None if it is this one, unknown, or no
        longer there.
        """
        label = self.engine.volume_labels(name).get(FOLDER, "")
        folder = Path(label)
        if not label or same(folder, self.root):
            return None
        return None if self.is_local and is_gone(folder) else folder

    def other_folder(self, there: Sequence[Container] | None = None) -> Path | None:
        """Another project folder that has containers under this name (``there``: all of them, where
        known), or None.
        """
        if there is None:
            there = self.engine.containers(self.profile.compose_name, all=True)
        local = bool(there) and self.is_local
        for container in there:
            folder = elsewhere(container, self.root, local=local)
            if folder is not None:
                return folder
        return None

    def require_name(self, there: Sequence[Container] | None = None) -> None:
        """RefusedError with the machine and both folders if the name belongs to another one."""
        other = self.other_folder(there)
        name = self.profile.compose_name
        if other is not None:
            raise RefusedError(
                self.named(f"{name} belongs to {other}; this is {self.root}"),
                hint=f"to work beside it, write `name: {self.profile.project}-2`, and ports of its own, into "
                f"envgen.local.yaml; to take its place: docker compose -p {name} down",
            )


def known_service(profile: Profile, name: str) -> None:
    """UsageError with a similar name unless the profile has a service ``name``."""
    if name not in profile.services:
        services = ", ".join(profile.services) or "none"
        similar = did_you_mean(profile.services, name)
        raise UsageError(
            f"profile {profile.name} has no service {name!r}; it has: {services}",
            hint=similar or "another profile? add --profile NAME",
        )


def require_described(profile: Profile, service: str) -> Cluster:
    """The machines that a service with `cluster` runs on. UsageError if ``nodes`` does not describe
    one.
    """
    cluster = profile.services[service].cluster
    assert cluster is not None
    missing = [node for node in cluster.nodes if node not in profile.nodes]
    if missing:
        raise UsageError(
            f"no address for {', '.join(missing)}",
            hint=f"write into envgen.local.yaml: defaults: {{nodes: {{{missing[0]}: {{context: NAME, "
            "address: 192.168.177.11, interface: enp1s0f1np1}}}",
        )
    return cluster


def rank_environment(profile: Profile, root: Path, cluster: Cluster, name: str) -> dict[str, str]:
    """The variables that the rendered Compose files need on machine ``name``."""
    machine = profile.nodes[name]
    variables = names.compose_environment(on_machine(profile, name), root)
    variables |= {
        names.NODE_RANK: str(cluster.nodes.index(name)),
        names.NODE_ADDRESS: machine.address,
        names.NODE_INTERFACE: machine.interface,
        names.HEAD_ADDRESS: profile.nodes[cluster.nodes[0]].address,
    }
    if machine.rdma:
        variables[names.NODE_RDMA] = ",".join(machine.rdma)
    return variables


def engine_file(profile: Profile, folder: Path, gpu: GpuMode) -> Path | None:
    """The Compose file in ``folder`` that overrides what this engine can't use as rendered; None if
    none is needed.

    ``gpu``: how the engine gives containers GPUs.
    """
    if not profile.gpu.asks_engine:
        return None
    services = []
    for name, service in profile.services.items():
        wanted = gpu_devices(service, written_mode(profile))
        given = gpu_devices(service, gpu)
        if wanted != given:
            devices = f"!override {json.dumps(given)}" if given else "!reset []"
            reservations = f"{{reservations: {{devices: {devices}}}}}"
            services.append(f"  {name}: {{deploy: {{resources: {reservations}}}}}\n")
    if not services:
        return None
    content = ("services:\n" + "".join(services)).encode()
    path = folder / ENGINE_FILE.format(hashlib.sha256(content).hexdigest()[:12])
    if not path.is_file() or files.read(path) != content:
        files.write(path, content, within=folder)
    return path
