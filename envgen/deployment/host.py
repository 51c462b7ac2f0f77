"""One engine and its machine. Whatever a use case asks about them is looked up once."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from envgen.engine.client import Engine, connect
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.gpu import gpu_offered
from envgen.errors import (
    EngineError,
    Problem,
    named,
)
from envgen.profile.model import GpuMode, Machine, Profile

H = TypeVar("H", bound="Host")


@dataclass(frozen=True)
class Host:
    """The machine ``node``, with its engine and the folders that it has for ``profile``. "": Docker's
    current engine.

    ``dotenv``: secrets from the project's `.env` that are not set in this terminal. ``shared``: the
    profile before a machine's folders were put in.
    """

    profile: Profile
    root: Path
    node: str = ""
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared: Profile | None = None

    def with_cached(self: H, **values: Any) -> H:
        """A copy with ``values`` in place of what it would look up. What it has looked up already
        stays.
        """
        made = copy.copy(self)
        made.__dict__.update(values)
        return made

    @property
    def shell(self) -> Mapping[str, str]:
        """The variables of this terminal, and secrets from `.env` that are not set in it."""
        return {**self.dotenv, **os.environ}

    def on(self: H, node: str) -> H:
        """The same profile on machine ``node``, with that machine's folders; "" for Docker's
        current engine.
        """
        if node == self.node:
            return self
        shared = self.shared or self.profile
        return replace(self, profile=on_machine(shared, node), node=node, shared=shared)

    @property
    def _environment(self) -> dict[str, str] | None:
        return docker_environment(self.profile.nodes[self.node]) if self.node else None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The address of the engine."""
        return find_endpoint(self._environment)

    @property
    def address(self) -> str:
        """Where the ports of the engine's machine are, as seen from this one.

        The socket of a context of one's own may lead to another machine; its address in `nodes` is
        its own.
        """
        engine = urlsplit(self.endpoint.host)
        machine = self.profile.nodes.get(self.node)
        if machine is not None and machine.context != "default" and engine.scheme == "unix":
            return machine.address
        return engine.hostname or "127.0.0.1"

    @cached_property
    def engine(self) -> Engine:
        """The engine, connected. EngineError names the machine."""
        try:
            return connect(self._environment)
        except EngineError as error:
            raise (named(self.node, error) if self.node else error) from None

    def sharing(self: H, other: Host) -> H:
        """The same, with the connection that ``other`` has to the same machine."""
        cached = vars(other)
        known = {name: cached[name] for name in ("endpoint", "engine") if name in cached}
        return self.with_cached(**known) if self.node == other.node else self

    def reconnected(self) -> Engine:
        """A new connection to the engine."""
        return connect(self._environment)

    @property
    def gpu(self) -> GpuMode:
        """How the engine gives containers a GPU."""
        return self._gpu[0]

    @property
    def lacks_gpu(self) -> Problem | None:
        """Why the engine can't provide the GPU that the profile requires; None if it can."""
        return self._gpu[1]

    @cached_property
    def _gpu(self) -> tuple[GpuMode, Problem | None]:
        wanted = self.profile.gpu
        if wanted is GpuMode.NONE:
            return wanted, None
        return gpu_offered(self.engine.info(), wanted)

    def docker(self, *words: str) -> list[str]:
        """A command of the docker CLI for this machine."""
        context = self.profile.nodes[self.node].context if self.node else "default"
        if context == "default":
            return ["docker", *words]
        return ["docker", "--context", context, *words]

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine, so that its files and ports can be checked."""
        return self.engine.info().local

    def named(self, text: str) -> str:
        """``text`` with the machine in front."""
        return f"{self.node}: {text}" if self.node else text


def docker_environment(machine: Machine) -> dict[str, str]:
    """The environment that points Docker at ``machine``. The context `default` changes nothing."""
    environment = dict(os.environ)
    if machine.context != "default":
        environment.pop("DOCKER_HOST", None)
        environment["DOCKER_CONTEXT"] = machine.context
    return environment


def host_of(profile: Profile, node: str) -> str:
    """The address of a machine's engine; "" if it can't be read, which ``connect`` reports."""
    try:
        return find_endpoint(docker_environment(profile.nodes[node]) if node else None).host
    except EngineError:
        return ""


def on_machine(profile: Profile, name: str) -> Profile:
    """The profile with machine ``name``'s folders for its caches; "" changes nothing."""
    if not name:
        return profile
    caches = dict(profile.caches)
    for key, folder in profile.nodes[name].caches.items():
        if key in caches and caches[key].host is not None:
            caches[key] = replace(caches[key], host=folder)
    return replace(profile, caches=caches)
