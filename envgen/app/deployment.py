"""A deployment: one profile, of one folder, on one engine. What a use case asks of it is looked up once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from envgen.app import nodes, ownership
from envgen.app.session import known_service
from envgen.engine.client import Engine, connect
from envgen.engine.compose import Compose
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.owner import ours
from envgen.engine.values import Container, Image
from envgen.errors import EngineError, NotFoundError, named
from envgen.lock.model import ProfileLock
from envgen.profile.model import Profile
from envgen.render.compose import cluster_file
from envgen.render.locking import lock_of_image
from envgen.render.outputs import Workspace, prepare
from envgen.serve import preflight
from envgen.serve.launch import compose_for


@dataclass(frozen=True)
class Deployment:
    """``profile`` has its machine's folders. ``node``: the name; "" for the engine that Docker itself would use."""

    profile: Profile
    root: Path
    node: str = ""

    def knowing(self, **values: Any) -> Deployment:
        """The same, where some of what it would look up is known; what it has looked up stays."""
        made = copy.copy(self)
        made.__dict__.update(values)
        return made

    @property
    def _environment(self) -> dict[str, str] | None:
        return nodes.environment(self.profile.nodes[self.node]) if self.node else None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The address of its engine."""
        return find_endpoint(self._environment)

    @cached_property
    def engine(self) -> Engine:
        """Its engine. EngineError with the machine's name."""
        try:
            return connect(self._environment)
        except EngineError as error:
            raise (named(self.node, error) if self.node else error) from None

    def connect(self) -> Engine:
        """``engine``, as a question that can be handed on."""
        return self.engine

    @cached_property
    def image(self) -> Image | None:
        """The profile's image, as the engine has it."""
        return self.engine.image(self.profile.image_name)

    @cached_property
    def lock(self) -> ProfileLock | None:
        """The lock that the image was built with, or else the lock file's."""
        return lock_of_image(self.profile, self.root, self.image.labels if self.image else None)

    @cached_property
    def workspace(self) -> Workspace:
        """The files as rendered for the image; written when first asked for."""
        return prepare(self.profile, self.root, self.lock)

    @property
    def digest(self) -> str:
        """Of what is rendered for it now."""
        return self.workspace.rendered.digest

    @cached_property
    def compose(self) -> Compose:
        """Its Compose project, for all services."""
        return self._compose(tuple(self.profile.services))

    def to_start(self, service: str) -> Deployment:
        """The same for a start of ``service``."""
        return self.knowing(compose=self._compose((service,)))

    def _compose(self, names: Sequence[str]) -> Compose:
        profile, root, node, folder = self.profile, self.root, self.node, self.workspace.folder
        gpu, _ = preflight.gpu_mode(self.engine, profile.gpu)
        if not node:
            return compose_for(self.engine, profile, root, folder, gpu)
        made = compose_for(self.engine, profile, root, folder, gpu, self.endpoint)
        files, env = list(made.files), dict(made.env)
        for name in names:
            cluster = profile.services[name].cluster
            if cluster is not None and node in cluster.nodes:
                parts = [
                    "head" if node == cluster.nodes[0] else "worker",
                    *(["rdma"] if profile.nodes[node].rdma else []),
                ]
                files += [folder / cluster_file(profile, name, part) for part in parts]
                env |= nodes.variables(profile, root, cluster, node)
        return replace(made, files=files, env=env)

    def containers(self, names: Sequence[str] = (), *, all: bool) -> tuple[Container, ...]:
        """The containers of these services (none named: everything of the profile). UsageError for an unknown name."""
        for name in names:
            known_service(self.profile, name)
        found = ours(self.engine.containers(self.profile.compose_name, all=all), self.root)
        return tuple(one for one in found if not names or one.service in names)

    def running(self, service: str) -> Container:
        """The container of a running service of ours. NotFoundError with the command that starts it."""
        known_service(self.profile, service)
        ownership.require(self.engine, self.profile, self.root)
        found = self.engine.containers(self.profile.compose_name, service)
        if not found:
            what = f"{service} is not running" + (f" on {self.node}" if self.node else "")
            raise NotFoundError(what, hint=f"envgen up {service} --profile {self.profile.name}")
        return found[0]

    def docker(self, *words: str) -> list[str]:
        """A command of Docker's own program for this machine."""
        context = self.profile.nodes[self.node].context if self.node else "default"
        return ["docker", *([] if context == "default" else ["--context", context]), *words]

    def named(self, text: str) -> str:
        """``text`` with the machine in front."""
        return f"{self.node}: {text}" if self.node else text
