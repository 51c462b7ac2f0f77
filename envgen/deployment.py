"""A deployment: one profile, of one folder, on one engine. Whatever a use case asks about it is
looked up once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envgen import files
from envgen.engine.client import Engine, connect
from envgen.engine.compose import Compose
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.gpu import gpu_offered
from envgen.engine.owner import FOLDER, elsewhere, host_user, ours, run_as, same
from envgen.engine.values import COMPOSE_PROJECT, COMPOSE_VOLUME, Container, ContainerMount, Image
from envgen.errors import (
    EngineError,
    NotFoundError,
    Place,
    Problem,
    ProcessError,
    ProjectError,
    RefusedError,
    UsageError,
    named,
)
from envgen.inside import run
from envgen.lock.ask import locked
from envgen.lock.model import LOCAL, InputChange, Lock, ProfileLock, load
from envgen.profile.compose_file import changes, effective, own_file
from envgen.profile.model import GpuMode, Machine, Mode, Profile
from envgen.profile.service import Cluster
from envgen.profile.tree import label_of
from envgen.render import environment as names
from envgen.render.compose import cluster_file, gpu_devices, written_mode
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import changed
from envgen.render.locking import LABEL as LOCK_LABEL
from envgen.render.locking import applied, built_version, left_out, namespace, places_of, series_of
from envgen.render.outputs import RENDER_LABEL, Rendered, Workspace, lay_out, render_profile
from envgen.text import did_you_mean, first_of

if TYPE_CHECKING:
    from envgen.patches.series import Series
    from envgen.patches.source import PatchedSource

ENGINE_FILE = "compose/this-engine-{}.yaml"  # by its content: several engines may be in use at once


@dataclass(frozen=True)
class Deployment:
    """``profile`` has the folders of its machine. ``node``: the machine's name; "" for Docker's
    current engine.

    ``dotenv``: secrets from the project's `.env` that are not set in this terminal. ``shared``: the
    profile before a machine's folders were put in.
    """

    profile: Profile
    root: Path
    node: str = ""
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared: Profile | None = None

    def with_cached(self, **values: Any) -> Deployment:
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

    def on(self, node: str) -> Deployment:
        """The same profile on machine ``node``, with that machine's folders; "" for Docker's
        current engine.
        """
        shared = self.shared or self.profile
        return replace(self, profile=on_machine(shared, node), node=node, shared=shared)

    # The machine

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
        machine, engine = (
            self.profile.nodes[self.node] if self.node else None,
            urlsplit(self.endpoint.host),
        )
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
        return (wanted, None) if wanted is GpuMode.NONE else gpu_offered(self.engine.info(), wanted)

    def docker(self, *words: str) -> list[str]:
        """A command of the docker CLI for this machine."""
        context = self.profile.nodes[self.node].context if self.node else "default"
        return ["docker", *([] if context == "default" else ["--context", context]), *words]

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine, so that its files and ports can be checked."""
        return self.engine.info().local

    def named(self, text: str) -> str:
        """``text`` with the machine in front."""
        return f"{self.node}: {text}" if self.node else text

    # The image, and what it was built from

    @cached_property
    def image(self) -> Image | None:
        """The profile's image on the engine; None if it is not built."""
        return self.engine.image(self.profile.image_name)

    @cached_property
    def lock_file(self) -> Lock | None:
        """envgen.lock; None without that file. ProjectError with all that is wrong in it."""
        return load(self.root)

    @cached_property
    def locked(self) -> ProfileLock | None:
        """The part of envgen.lock for the profile; None without that file."""
        return locked(self.profile, self.lock_file) if self.lock_file else None

    @cached_property
    def lock(self) -> ProfileLock | None:
        """The lock to compare the image by: that of the lock file, or none if the image was built
        without one.
        """
        return None if self.image and self.image.labels.get(LOCK_LABEL) == "" else self.locked

    @cached_property
    def platform(self) -> str:
        """The platform of the image: the profile's, else the engine's."""
        chosen = self.profile.base.platform
        return chosen.value if chosen else f"linux/{self.engine.info().arch}"

    @cached_property
    def base_moved(self) -> str:
        """What is wrong with a base image that was locked as one of this engine: "is missing", ...;
        "": nothing.
        """
        base = self.lock.base if self.lock else None
        if base is None or base.resolved != LOCAL:
            return ""
        image = self.engine.image(base.name)
        return (
            "is missing" if image is None else "has another ID" if image.id != base.digest else ""
        )

    @cached_property
    def needs_lock(self) -> bool:
        """Whether `envgen build` would refuse, because a production profile is in no lock."""
        return self.profile.mode is Mode.PRODUCTION and self.locked is None

    def to_build(self, *, unlocked: bool = False) -> Deployment:
        """The same with the current lock file, whatever the image was built with. ``unlocked``:
        with none.
        """
        made = replace(self)  # a fresh copy: nothing rendered with another lock
        return made.with_cached(lock=None if unlocked else made.locked)

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """Source -> its patches, of the sources that a build patches. ProjectError with everything
        wrong in them.
        """
        return series_of(self.profile, self.root)

    @property
    def patched_sources(self) -> list[PatchedSource]:
        """The sources with patches, at their locked commits and versions."""
        from envgen.patches.source import PatchedSource

        commits = {name: git.commit for name, git in self.lock.git.items()} if self.lock else {}
        return [
            PatchedSource(
                name,
                self.profile,
                source,
                self.root,
                commits.get(name, ""),
                built_version(source, self.lock),
            )
            for name, source in self.profile.sources.items()
            if source.patches
        ]

    @cached_property
    def rendered(self) -> Rendered:
        """The files as rendered for the image, in memory."""
        return render_profile(self.profile, self.lock, root=self.root, series=self.series)

    @property
    def is_current(self) -> bool:
        """Whether the image was built from what is rendered now."""
        return (
            self.image is not None and self.image.labels.get(RENDER_LABEL) == self.rendered.digest
        )

    @property
    def outdated(self) -> list[InputChange]:
        """What has changed since the image was built, as far as its labels tell."""
        if self.image is None or self.is_current:
            return []
        changes = changed(self.image.labels.get(INPUTS_LABEL, ""), self.rendered.inputs)
        return [
            one for one in changes if one.after or not (self.root / one.name).is_file()
        ]  # `left_out` says that

    @property
    def image_problems(self) -> tuple[Problem, ...]:
        """Whether the image is missing, or older than what is rendered now."""
        if self.is_current:
            return ()
        what = "is not built"
        if self.image is not None:
            what = (
                "is older than the profile"
                if RENDER_LABEL in self.image.labels
                else "was not built by envgen"
            )
            if changes := first_of([str(one) for one in self.outdated], 4):
                what += f" ({'; '.join(changes)})"
        hint = f"envgen build {self.profile.chosen}"
        if self.needs_lock:
            hint = f"{self.profile.lock_command} && {hint}"
        return (Problem(f"the image {self.profile.image_name} {what}", hint=hint),)

    @property
    def left_out(self) -> list[str]:
        """A sentence for each source with patches that are not for the version that is built."""
        return left_out(self.profile, self.lock, self.series)

    @cached_property
    def workspace(self) -> Workspace:
        """The rendered files, in the project's folder or a temporary one; written on first use."""
        return lay_out(self.rendered, self.profile, self.root)

    @cached_property
    def own_files(self) -> dict[str, Path]:
        """Key -> the file or folder of this machine that the profile names there for its builds. It
        may not exist.
        """
        profile = self.profile
        named = {
            "pip.netrc": profile.pip.netrc,
            "network.ca_certificates": profile.network.ca_certificates,
            "build.wheelhouse": profile.build.wheelhouse,
        }
        return {
            key: (self.root / Path(one.path).expanduser()).resolve()
            for key, one in named.items()
            if one
        }

    @property
    def missing_files(self) -> tuple[Problem, ...]:
        """A problem for each of ``own_files`` that does not exist."""
        problems = []
        for key, path in self.own_files.items():
            kind = "folder" if key == "build.wheelhouse" else "file"
            if not (path.is_dir() if kind == "folder" else path.is_file()):
                message = f"{key}: {kind} {path} does not exist"
                problems.append(Problem(message, hint=f"correct {key}, or unset it"))
        return tuple(problems)

    def require_own_files(self) -> dict[str, Path]:
        """``own_files``. RefusedError with all that do not exist."""
        if problems := self.missing_files:
            raise RefusedError(problems=problems)
        return self.own_files

    # Services

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
        profile, root, folder = self.profile, self.root, self.workspace.folder
        endpoint = self.endpoint if self.node else find_endpoint()
        chosen = [folder / profile.compose_file]
        if of_engine := engine_file(profile, folder, self.gpu):
            chosen.append(of_engine)
        if own and (file := own_file(profile, root)) is not None:
            chosen.append(file)
        env = {**self.dotenv, **names.compose_environment(profile, root)}
        if any(profile.user_of(name) == "host" for name in profile.services):
            uid, gid = host_user(self.engine)
            env |= {names.UID_VARIABLE: str(uid), names.GID_VARIABLE: str(gid)}
        for name in services if self.node else ():
            cluster = profile.services[name].cluster
            if cluster is not None and self.node in cluster.nodes:
                is_head, rdma = self.node == cluster.nodes[0], profile.nodes[self.node].rdma
                parts = ["head" if is_head else "worker", *(["rdma"] if rdma else [])]
                chosen += [folder / cluster_file(profile, name, part) for part in parts]
                env |= rank_environment(profile, root, cluster, self.node)
        # Relative paths in the rendered file start from compose/, wherever the copy that is used
        # is.
        return Compose(endpoint, chosen, root / "compose", profile.compose_name, env)

    @property
    def by_name(self) -> Compose:
        """The Compose project as the engine has it, without files: neither a broken one nor a full
        disk matters.
        """
        return Compose(self.endpoint, (), self.root, self.profile.compose_name)

    @cached_property
    def effective(self) -> Profile:
        """The profile as Compose understands it together with the profile's own Compose file."""
        own = self.profile.compose is not None
        return effective(self.profile, self.document.get("services") or {}) if own else self.profile

    @property
    def document(self) -> Mapping[str, Any]:
        """What Compose makes of all files. ProjectError where it refuses the profile's own."""
        try:
            return self.compose.document
        except ProcessError as error:
            if (own := own_file(self.profile, self.root)) is None:
                raise
            why = (error.stderr.strip().splitlines() or [f"exit code {error.code}"])[-1]
            beside = re.search(rf"{re.escape(str(self.root))}/compose/(\S+) not found", why)
            hint = f"paths in it start at compose/: write ../{beside[1]}" if beside else ""
            raise ProjectError(
                [Problem(f"Compose refuses it: {why}", Place(label_of(own)), hint)]
            ) from None

    def own_changes(self, service: str) -> list[str]:
        """What the profile's own Compose file changes of a service."""
        if self.profile.compose is None:
            return []
        return changes(
            self.rendered_compose.service(service),
            (self.document.get("services") or {}).get(service) or {},
        )

    @property
    def rendered_compose(self) -> Compose:
        """``compose`` without the profile's own file."""
        return self._compose(tuple(self.profile.services), own=False)

    def containers(self, services: Sequence[str] = (), *, all: bool) -> tuple[Container, ...]:
        """The containers of ``services`` (default: of the whole profile). UsageError for an unknown
        name.
        """
        for name in services:
            known_service(self.profile, name)
        containers = ours(self.engine.containers(self.profile.compose_name, all=all), self.root)
        return tuple(one for one in containers if not services or one.service in services)

    def running(self, service: str) -> Container:
        """The container of a running service. NotFoundError with the command that starts it."""
        known_service(self.profile, service)
        self.require_name()
        containers = self.engine.containers(self.profile.compose_name, service)
        if not containers:
            what = f"{service} is not running" + (f" on {self.node}" if self.node else "")
            raise NotFoundError(what, hint=f"envgen up {service} {self.profile.chosen_variant}")
        return containers[0]

    # Caches, and containers of our own

    @cached_property
    def cache_key(self) -> str:
        """The key of the kernel cache that `envgen up` mounts; "" if there is none."""
        return namespace(self.profile, self.lock, applied(self.profile, self.lock, self.series))

    @cached_property
    def caches(self) -> dict[str, ContainerMount]:
        """The caches by name, as `envgen up` mounts them. They may not exist yet."""
        places = places_of(self.profile, self.root, self.cache_key)
        return {
            name: ContainerMount(*place)
            for name, place in zip(self.profile.caches, places, strict=True)
        }

    def mounts(self, service: str) -> list[ContainerMount]:
        """What Compose would mount, without volumes that do not exist: a temporary container must
        not create them.
        """
        profile, machine = self.profile, names.compose_environment(self.profile, self.root)
        mounts = []
        for name, source in profile.mounted_sources.items():
            mounts.append(ContainerMount(machine[names.checkout_variable(name)], str(source.mount)))
        for name, mount in (
            profile.services[service].mounts.items() if service in profile.services else ()
        ):
            place = machine[names.mount_variable(service, name)]
            mounts.append(ContainerMount(place, str(mount.path), read_only=mount.read_only))
        mounts += self.caches.values()
        if profile.mounted_sources:
            mounts.append(ContainerMount(names.overlay_volume(profile), names.OVERLAY, "volume"))
        return [
            one
            for one in mounts
            if one.kind != "volume" or self.engine.volume(one.source) is not None
        ]

    def memory_floor(self, service: str) -> str:
        """What memory-guard keeps free, as it gets it: the profile's, unless this terminal or
        `.env` sets another.
        """
        floor = names.memory_floor(self.profile, service)
        return floor and (self.shell.get(names.FLOOR_VARIABLE) or floor)

    def gpus_of(self, service: str) -> Sequence[Mapping[str, Any]]:
        """The GPUs that `envgen up` would give the service, as Compose writes them; none if the
        engine has none.
        """
        if (
            self.profile.gpu is GpuMode.NONE
            or self.lacks_gpu is not None
            or service not in self.profile.services
        ):
            return ()
        return gpu_devices(self.profile.services[service], self.gpu)

    def temporary_container(
        self, service: str, memory: int = run.MEMORY, *, gpu: bool = False
    ) -> tuple[run.Execute, list[ContainerMount]]:
        """A temporary container with the mounts and variables of the service. Returns its runner
        and the mounts.

        Mounts that do not exist are left out. ``gpu``: with the service's GPUs, too.
        """
        mounted = self.mounts(service)
        if self.is_local:
            mounted = [one for one in mounted if one.kind == "volume" or Path(one.source).exists()]
        inside = run.in_image(
            self.engine,
            self.profile.image_name,
            mounts=mounted,
            env=names.compose_env(self.profile, service),
            user=run_as(self.engine, self.profile, service),
            memory=memory,
            absent=[],
            gpus=self.gpus_of(service) if gpu else (),
        )
        return inside, mounted

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
        if not label or same(Path(label), self.root):
            return None
        return Path(label) if not self.is_local or os.path.lexists(label) else None

    # The name on the engine. Containers, image and overlay are called NAME-PROFILE, so folders with
    # the same `name:` would use each other's. The name belongs to the folder that has containers
    # under it.

    def other_folder(self, there: Sequence[Container] | None = None) -> Path | None:
        """Another project folder that has containers under this name (``there``: all of them, where
        known), or None.
        """
        there = (
            self.engine.containers(self.profile.compose_name, all=True) if there is None else there
        )
        return next((folder for one in there if (folder := elsewhere(one, self.root))), None)

    def require_name(self) -> None:
        """RefusedError with the machine and both folders if the name belongs to another one."""
        other, name = self.other_folder(), self.profile.compose_name
        if other is not None:
            gone = "; that folder no longer exists" if self.is_local and not other.exists() else ""
            raise RefusedError(
                self.named(f"{name} belongs to {other}; this is {self.root}{gone}"),
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


# --- one machine
# ------------------------------------------------------------------------------------------------------


def docker_environment(machine: Machine) -> dict[str, str]:
    """The environment that points Docker at ``machine``. The context `default` changes nothing."""
    context = {} if machine.context == "default" else {"DOCKER_CONTEXT": machine.context}
    return {
        key: value for key, value in os.environ.items() if key != "DOCKER_HOST" or not context
    } | context


def host_of(profile: Profile, node: str) -> str:
    """The address of a machine's engine; "" if it can't be read, which ``connect`` reports."""
    try:
        return find_endpoint(docker_environment(profile.nodes[node]) if node else None).host
    except EngineError:
        return ""


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


def on_machine(profile: Profile, name: str) -> Profile:
    """The profile with machine ``name``'s folders for its caches; "" changes nothing."""
    own = profile.nodes[name].caches if name else {}
    caches = {
        key: replace(cache, host=own[key]) if cache.host is not None and key in own else cache
        for key, cache in profile.caches.items()
    }
    return replace(profile, caches=caches)


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
    services = dict[str, str]()
    for name, service in profile.services.items():
        wanted, given = gpu_devices(service, written_mode(profile)), gpu_devices(service, gpu)
        if profile.gpu.asks_engine and wanted != given:
            devices = f"!override {json.dumps(given)}" if given else "!reset []"
            services[name] = (
                f"  {name}: {{deploy: {{resources: {{reservations: {{devices: {devices}}}}}}}}}\n"
            )
    if not services:
        return None
    content = ("services:\n" + "".join(services.values())).encode()
    path = folder / ENGINE_FILE.format(hashlib.sha256(content).hexdigest()[:12])
    if not path.is_file() or files.read(path) != content:
        files.write(path, content, within=folder)
    return path
