"""One service of a profile on a host: what is described, and what runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.binding import JsonObject
from envgen.deployment.project import Deployment, known_service
from envgen.engine.client import Engine
from envgen.engine.endpoint import forward
from envgen.engine.owner import run_as
from envgen.engine.values import Container, ContainerMount
from envgen.errors import (
    NotFoundError,
)
from envgen.inside import run
from envgen.profile.compose_file import changes
from envgen.profile.exposure import API_KEY
from envgen.profile.model import GpuMode, Profile
from envgen.profile.service import Service
from envgen.profile.values import PortMapping
from envgen.render import environment as names
from envgen.render.compose import gpu_devices


@dataclass(frozen=True)
class LiveService:
    """The service ``name`` of a profile, on the host of ``deployment``."""

    deployment: Deployment
    name: str

    @property
    def profile(self) -> Profile:
        return self.deployment.profile

    @property
    def engine(self) -> Engine:
        return self.deployment.engine

    @property
    def described(self) -> Service:
        """What the profile says of it."""
        return self.profile.services[self.name]

    @property
    def effective(self) -> Service:
        """The same as Compose understands it, with the profile's own Compose file."""
        return self.deployment.effective.services[self.name]

    def hint(self, verb: str, *words: str) -> str:
        """A command about this service, to be typed."""
        return self.profile.hint(verb, self.name, *words)

    def on(self, deployment: Deployment) -> LiveService:
        """The same service on another host, or with other settings."""
        return LiveService(deployment, self.name)

    def to_start(self) -> LiveService:
        """The same with Compose files for a start of this service alone."""
        return self.on(self.deployment.to_start(self.name))

    # What runs

    def containers(self, *, all: bool = False) -> tuple[Container, ...]:
        """Its containers; only running ones unless ``all``."""
        return self.engine.containers(self.profile.compose_name, self.name, all=all)

    def running(self) -> Container:
        """Its running container. NotFoundError with the command that starts it."""
        known_service(self.profile, self.name)
        self.deployment.require_name()
        containers = self.containers()
        if containers:
            return containers[0]
        node = self.deployment.node
        what = f"{self.name} is not running on {node}" if node else f"{self.name} is not running"
        raise NotFoundError(what, hint=self.hint("up"))

    @property
    def url(self) -> str:
        """Its address on the engine's machine; "" if it publishes no port."""
        return url_of(self.effective, self.deployment.address)

    def reachable_url(self) -> str:
        """The address at which this process reaches it; for an ssh:// engine, through a forwarded
        port.
        """
        port = _published(self.effective)
        host = self.deployment.endpoint.host
        if port is None or not host.startswith("ssh://"):
            return self.url
        address = port.address
        if address in ("", "0.0.0.0", "::"):
            address = "127.0.0.1"
        if ":" in address:
            address = f"[{address}]"
        return f"http://127.0.0.1:{forward(host, f'{address}:{port.host}').port}"

    @property
    def api_key(self) -> str:
        """The API key of its server, from this terminal or `.env`; "" if it needs none."""
        return self.deployment.shell.get(API_KEY, "") if API_KEY in self.profile.secrets else ""

    # What it gets

    def own_changes(self) -> list[str]:
        """What the profile's own Compose file changes of it."""
        deployment = self.deployment
        if self.profile.compose is None:
            return []
        document = deployment.document.get("services") or {}
        rendered = deployment.rendered_compose.service(self.name)
        return changes(rendered, document.get(self.name) or {})

    @property
    def memory_floor(self) -> str:
        """What memory-guard keeps free, as it gets it: the profile's, unless this terminal or
        `.env` sets another.
        """
        floor = names.memory_floor(self.profile, self.name)
        return floor and (self.deployment.shell.get(names.FLOOR_VARIABLE) or floor)

    @property
    def gpus(self) -> Sequence[JsonObject]:
        """The GPUs that `envgen up` would give it, as Compose writes them; none if the engine has
        none.
        """
        deployment = self.deployment
        if self.profile.gpu is GpuMode.NONE or self.name not in self.profile.services:
            return ()
        if deployment.lacks_gpu is not None:
            return ()
        return gpu_devices(self.described, deployment.gpu)

    def mounts(self) -> list[ContainerMount]:
        """What Compose would mount, without volumes that do not exist: a temporary container must
        not create them.
        """
        profile = self.profile
        engine = self.engine
        root = self.deployment.root
        mounts = []
        for name, folder in profile.checkouts.items():
            target = str(profile.sources[name].mount)
            mounts.append(ContainerMount(str(folder.below(root)), target))
        if self.name in profile.services:
            for mount in self.described.mounts.values():
                place = str(mount.host.below(root))
                mounts.append(ContainerMount(place, str(mount.path), read_only=mount.read_only))
        mounts += self.deployment.caches.values()
        if profile.mounted_sources:
            mounts.append(ContainerMount(names.overlay_volume(profile), names.OVERLAY, "volume"))
        there = []
        for one in mounts:
            if one.kind != "volume" or engine.volume(one.source) is not None:
                there.append(one)
        return there

    def temporary_container(self, *, gpu: bool = False) -> tuple[run.Execute, list[ContainerMount]]:
        """A temporary container with the mounts and variables of the service. Returns its runner
        and the mounts.

        Mounts that do not exist are left out. ``gpu``: with the service's GPUs, too.
        """
        mounts = self.mounts()
        if self.deployment.is_local:
            mounts = [one for one in mounts if one.kind == "volume" or Path(one.source).exists()]
        inside = run.in_image(
            self.engine,
            self.profile.image_name,
            mounts=mounts,
            env=names.compose_env(self.profile, self.name),
            user=run_as(self.engine, self.profile, self.name),
            absent=[],
            gpus=self.gpus if gpu else (),
        )
        return inside, mounts


def url_of(service: Service, machine: str) -> str:
    """``http://address:port`` of a service whose engine is on ``machine``; "" if it publishes no
    port.
    """
    port = _published(service)
    if port is None:
        return ""
    address = machine if port.address in ("", "0.0.0.0") else port.address
    return f"http://{address}:{port.host}"


def _published(service: Service) -> PortMapping | None:
    """The published port that answers HTTP."""
    for port in service.host_ports:
        if not service.http_port or service.http_port == port.container:
            return port
    return None
