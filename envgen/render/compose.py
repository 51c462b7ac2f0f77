"""Compose files from a profile: what is the same for all services stands once, behind an anchor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.profile.model import GpuMode, Health, Profile, Service
from envgen.profile.values import own_path
from envgen.render import environment as names
from envgen.render.namespace import folder_of, volume_of
from envgen.render.quote import Quoted, compose_text, compose_variable, yaml_key, yaml_text
from envgen.render.templating import render

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
STOP_GRACE = "30s"
OFFLINE = "HF_HUB_OFFLINE"
CLUSTER_PARTS = ("head", "worker", "rdma")
VARIANT = "dev.envgen.variant"


@dataclass(frozen=True)
class Line:
    """``key: value`` with both sides ready to print; no value: taken from the shell when the file is used."""

    key: Quoted
    value: Quoted = Quoted("")


@dataclass(frozen=True)
class Volume:
    kind: Quoted
    source: Quoted
    target: Quoted
    read_only: bool = False
    create_host_path: tuple[str, ...] = ()  # for folders of the host: whether a missing one is made


@dataclass(frozen=True)
class ServiceView:
    name: Quoted
    command: tuple[str, ...]
    groups: Quoted
    env: tuple[Line, ...]
    service: Service
    health: tuple[HealthView, ...]
    profiles: tuple[str, ...]
    user: tuple[Quoted, ...]
    volumes: tuple[Volume, ...]  # all of them, where it has more than the others
    labels: tuple[Line, ...]
    deploy: tuple[Quoted, ...]


@dataclass(frozen=True)
class HealthView:
    test: tuple[str, ...]
    health: Health


def compose_files(profile: Profile, key: str = "") -> dict[str, str]:
    """Path relative to the project -> text: the file, and the GPU overlays where the profile leaves that open.

    ``key``: the namespace of FlashInfer's cache.
    """
    context = _context(profile, key)
    files = {profile.compose_file: render("compose.yaml.j2", context)}
    if profile.gpu.asks_engine:
        for mode in (GpuMode.ALL, GpuMode.CDI):
            deploys = [(yaml_key(name), _deploy(one, mode)) for name, one in profile.services.items()]
            more = {"gpu": mode.value, "deploys": deploys}
            files[overlay_file(profile, mode)] = render("compose.gpu.yaml.j2", {**context, **more})
    for name, service in profile.services.items():
        if service.cluster is not None:
            for part in CLUSTER_PARTS:
                files[cluster_file(profile, name, part)] = render(
                    "compose.cluster.yaml.j2", _cluster(profile, name, part)
                )
    return files


def cluster_file(profile: Profile, service: str, part: str) -> str:
    """The Compose file to add with `-f` on a machine of a cluster: one of CLUSTER_PARTS."""
    return f"compose/{profile.name}.{service}.{part}.yaml"


def _cluster(profile: Profile, name: str, part: str) -> dict[str, object]:
    """What one rank gets besides the service's own settings. Facts about a machine are variables."""
    service = profile.services[name]
    assert service.cluster is not None
    flags = {
        "distributed-executor-backend": "mp",
        "nnodes": str(len(service.cluster.nodes)),
        "master-port": str(service.cluster.port),
    }
    words = [*service.argv, *(word for flag, value in flags.items() for word in (f"--{flag}", value))]
    words += ["--headless"] if part == "worker" else []
    return {
        "profile": profile,
        "part": part,
        "name": yaml_key(name),
        "words": words,
        "rank": compose_variable(names.NODE_RANK, None, reason="this machine's rank: 0 for the head"),
        "address": compose_variable(names.NODE_ADDRESS, None, reason="this machine's address on the cable"),
        "interface": compose_variable(names.NODE_INTERFACE, None, reason="the interface of that address"),
        "master": compose_variable(names.HEAD_ADDRESS, None, reason="the head's address on the cable"),
        "rdma": compose_variable(names.NODE_RDMA, None, reason="this machine's RDMA devices"),
    }


def overlay_file(profile: Profile, mode: GpuMode) -> str:
    """The Compose file to add with `-f` for a GPU mode, where the profile leaves it to the engine."""
    return f"compose/{profile.name}.gpu-{mode.value}.yaml"


def _context(profile: Profile, key: str) -> dict[str, object]:
    groups = {name: _lines(profile.env[name]) for name in groups_in_use(profile)}
    user = [(Quoted("user"), _lines(env)) for env in [_user_env(profile)] if env]
    derived = [
        Line(Quoted("MAX_JOBS"), _jobs(profile)),
        *(Line(yaml_key(name), compose_text(value)) for name, value in names.service_env(profile).items()),
    ]
    passed = [*profile.secrets, *(name for name in PROXY if profile.network.pass_proxy and name not in profile.secrets)]
    return {
        "profile": profile,
        "derived": derived,
        "passed": [Line(yaml_key(name)) for name in passed],
        "proxy": [Line(yaml_key(name)) for name in PROXY if profile.network.pass_proxy],
        "groups": [*user, *((Quoted(f"env-{name}"), lines) for name, lines in groups.items())],
        "ulimits": [(yaml_key(name), limit) for name, limit in profile.ulimits.items()],
        "shm": [str(profile.shm_size.bytes)] if profile.shm_size and profile.ipc != "host" else [],
        "platform": [profile.base.platform.value] if profile.base.platform else [],
        "wheelhouse": _wheelhouse(profile),
        "volumes": _volumes(profile, key),
        "named_volumes": _named_volumes(profile, key),
        # The caches of a copy (`instance`) are those of the plain one: its `down --volumes` must leave them.
        "copy": f"--{profile.instance}" if profile.instance else "",
        "shared_volumes": [f"cache-{name}" for name in profile.caches] if profile.instance else [],
        "services": [_service(profile, name, number, key) for number, name in enumerate(profile.services)],
        "gpus": [profile.gpu.value] if profile.gpu in (GpuMode.ALL, GpuMode.CDI) else [],
        "overlays": [overlay_file(profile, GpuMode.ALL)] if profile.gpu.asks_engine else [],
        "own": [own_path(profile.compose.path)] if profile.compose is not None else [],
        "ca": _ca(profile),
        "grace": STOP_GRACE,
    }


def groups_in_use(profile: Profile) -> tuple[str, ...]:
    """The env groups that this profile's services may get, in the order of the file: later ones are stronger."""
    return tuple(name for name in profile.env if profile.env_groups is None or name in profile.env_groups)


def _lines(values: Mapping[str, str]) -> list[Line]:
    return [Line(yaml_key(name), compose_text(value)) for name, value in values.items()]


def _jobs(profile: Profile) -> Quoted:
    """Empty where no number is given: the entry point then lets ninja start all, and compile-gate decides."""
    return compose_variable(names.JOBS_VARIABLE, str(profile.build.max_jobs.count or ""))


def _ca(profile: Profile) -> Quoted:
    path = profile.network.ca_certificates
    default = names.compose_path(path) if path else "/dev/null"
    return compose_variable(names.CA_VARIABLE, default, reason="the PEM file of your CA certificates")


def _wheelhouse(profile: Profile) -> list[Quoted]:
    path = profile.build.wheelhouse
    if path is None:
        return []
    return [compose_variable(names.WHEELHOUSE_VARIABLE, names.compose_path(path), reason="your folder of wheels")]


def _volumes(profile: Profile, key: str) -> list[Volume]:
    bind, volume = Quoted("bind"), Quoted("volume")
    found = []
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        default = names.compose_path(source.origin.checkout)
        text = compose_variable(names.checkout_variable(name), default, reason=f"the folder of your {name} checkout")
        found.append(Volume(bind, text, compose_text(source.mount.path), create_host_path=("false",)))
    if profile.mounted_sources:
        found.append(Volume(volume, Quoted("overlay"), compose_text(names.OVERLAY)))
    for name, cache in profile.caches.items():
        target = compose_text(cache.path.path)
        if cache.host is None:
            found.append(Volume(volume, Quoted(f"cache-{name}"), target))
        else:
            default = names.compose_path(cache.host)
            reason, below = f"a folder for the cache {name}", folder_of(name, key)
            text = compose_variable(names.cache_variable(name), default, reason=reason, after=below)
            found.append(Volume(bind, text, target, create_host_path=("true",)))
    found.append(Volume(bind, _ca(profile), compose_text(names.CA_FILE), read_only=True, create_host_path=("false",)))
    return found


def _named_volumes(profile: Profile, key: str) -> list[Line]:
    lines = [Line(Quoted("overlay"), compose_text(names.overlay_volume(profile)))] if profile.mounted_sources else []
    for name, cache in profile.caches.items():
        if cache.host is None:
            lines.append(Line(Quoted(f"cache-{name}"), compose_text(volume_of(profile, name, key))))
    return lines


def _mounts(service: str, described: Service) -> list[Volume]:
    found = []
    for name, mount in described.mounts.items():
        reason = f"the file or folder {name} of {service}"
        text = compose_variable(names.mount_variable(service, name), names.compose_path(mount.host), reason=reason)
        target = compose_text(mount.path.path)
        found.append(Volume(Quoted("bind"), text, target, mount.read_only, create_host_path=("false",)))
    return found


def _deploy(service: Service, mode: GpuMode) -> tuple[Quoted, ...]:
    """Compose's `deploy` for the GPUs that a service names; nothing where it gets what all get."""
    if service.gpu is None or mode not in (GpuMode.ALL, GpuMode.CDI):
        return ()
    if not service.gpu:
        return (Quoted("{}"),)
    driver, prefix = ("nvidia", "") if mode is GpuMode.ALL else ("cdi", "nvidia.com/gpu=")
    ids = ", ".join(compose_text(f"{prefix}{one}") for one in service.gpu)
    device = f"{{driver: {driver}, device_ids: [{ids}], capabilities: [gpu]}}"
    return (Quoted(f"{{resources: {{reservations: {{devices: [{device}]}}}}}}"),)


def _service(profile: Profile, name: str, number: int, key: str) -> ServiceView:
    service = profile.services[name]
    chosen = [n for n in groups_in_use(profile) if service.env_groups is None or n in service.env_groups]
    # YAML merges let the first of a list win, so the strongest group stands first.
    user = ["*user"] if names.user_env(profile, name) else []
    aliases = [*(f"*env-{group}" for group in reversed(chosen)), *user, "*env-derived", "*env-passed"]
    env = _lines(service.env)
    if service.model is not None and OFFLINE not in service.env:
        # `up` starts it when all weights are there, and then no hub can stop it.
        env.insert(0, Line(yaml_key(OFFLINE), compose_variable(names.OFFLINE_VARIABLE, "0")))
    return ServiceView(
        name=yaml_key(name),
        command=service.argv,
        groups=Quoted(", ".join(aliases)),
        env=tuple(env),
        service=service,
        health=(HealthView(_health_test(service.health), service.health),) if service.health else (),
        # Only the first service starts when none is named; `up NAME` starts exactly that one.
        profiles=(name,) if number else (),
        user=_user(profile, name),
        volumes=(*_volumes(profile, key), *_mounts(name, service)) if service.mounts else (),
        labels=tuple(_lines({**service.labels, **({VARIANT: profile.variant} if profile.variant else {})})),
        deploy=_deploy(service, profile.gpu),
    )


def _user_env(profile: Profile) -> Mapping[str, str]:
    """The same for every service that has one."""
    return next((env for env in (names.user_env(profile, name) for name in profile.services) if env), {})


def _user(profile: Profile, service: str) -> tuple[Quoted, ...]:
    """Compose's `user`. Who starts a service is not known here; with plain `docker compose up` it is root."""
    user = profile.user_of(service)
    if user == "host":
        return (yaml_text(f"${{{names.UID_VARIABLE}:-0}}:${{{names.GID_VARIABLE}:-0}}"),)
    return (yaml_text("0:0" if user == "root" else user),) if user else ()


def _health_test(health: Health) -> tuple[str, ...]:
    if health.http is not None:
        return ("CMD", f"{names.HOME}/bin/envgen-health", str(health.port), health.http)
    return ("CMD", names.WITH_START_UP, *health.command)
