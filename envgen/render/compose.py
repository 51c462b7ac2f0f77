"""Compose files from a profile: what is the same for all services stands once, behind an anchor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.profile.model import Cluster, GpuMode, Health, Profile, Service
from envgen.profile.values import PortMapping, own_path
from envgen.render import environment as names
from envgen.render.namespace import folder_of, volume_of
from envgen.render.quote import Quoted, compose_text, compose_variable, yaml_key, yaml_text
from envgen.render.templating import render

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
STOP_GRACE = "30s"
OFFLINE = "HF_HUB_OFFLINE"
CLUSTER_PARTS = ("head", "worker", "rdma")
VARIANT = "dev.envgen.variant"


Lines = list[tuple[Quoted, Quoted]]  # ``key: value`` with both sides ready to print


@dataclass(frozen=True)
class Volume:
    kind: Quoted
    source: Quoted
    target: Quoted
    read_only: bool = False
    create_host_path: str = ""  # for folders of the host: whether a missing one is made


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
    words = [*service.argv, *cluster_flags(service.cluster)]
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


def cluster_flags(cluster: Cluster) -> list[str]:
    """What all ranks say of the whole; where the head is, and which rank this one has, follows."""
    flags = {"distributed-executor-backend": "mp", "nnodes": str(len(cluster.nodes)), "master-port": str(cluster.port)}
    return [word for flag, value in flags.items() for word in (f"--{flag}", value)]


def overlay_file(profile: Profile, mode: GpuMode) -> str:
    """The Compose file to add with `-f` for a GPU mode, where the profile leaves it to the engine."""
    return f"compose/{profile.name}.gpu-{mode.value}.yaml"


def _context(profile: Profile, key: str) -> dict[str, object]:
    groups = {name: _lines(profile.env[name]) for name in groups_in_use(profile)}
    user_env = next((env for name in profile.services if (env := names.user_env(profile, name))), None)
    # Empty where no number is given: the entry point then lets ninja start all, and compile-gate decides.
    jobs = compose_variable(names.JOBS_VARIABLE, str(profile.build.max_jobs.count or ""))
    passed = [*profile.secrets, *(name for name in PROXY if profile.network.pass_proxy and name not in profile.secrets)]
    return {
        "profile": profile,
        "derived": [(Quoted("MAX_JOBS"), jobs), *_lines(names.service_env(profile))],
        "passed": [yaml_key(name) for name in passed],
        "proxy": [yaml_key(name) for name in PROXY if profile.network.pass_proxy],
        "groups": [
            *([(Quoted("user"), _lines(user_env))] if user_env else []),
            *((Quoted(f"env-{name}"), lines) for name, lines in groups.items()),
        ],
        "ulimits": [(yaml_key(name), limit) for name, limit in profile.ulimits.items()],
        "shm": str(profile.shm_size.bytes) if profile.shm_size and profile.ipc != "host" else "",
        "platform": profile.base.platform.value if profile.base.platform else "",
        "wheelhouse": _wheelhouse(profile),
        "volumes": _volumes(profile, key),
        "named_volumes": _named_volumes(profile, key),
        # The caches of a copy (`instance`) are those of the plain one: its `down --volumes` must leave them.
        "copy": f"--{profile.instance}" if profile.instance else "",
        "shared_volumes": [f"cache-{name}" for name in profile.caches] if profile.instance else [],
        "services": [_service(profile, name, number, key) for number, name in enumerate(profile.services)],
        "gpu": profile.gpu.value if profile.gpu in (GpuMode.ALL, GpuMode.CDI) else "",
        "overlay": overlay_file(profile, GpuMode.ALL) if profile.gpu.asks_engine else "",
        "own": own_path(profile.compose.path) if profile.compose is not None else "",
        "ca": _ca(profile),
        "grace": STOP_GRACE,
    }


def groups_in_use(profile: Profile) -> tuple[str, ...]:
    """The env groups that this profile's services may get, in the order of the file: later ones are stronger."""
    return tuple(name for name in profile.env if profile.env_groups is None or name in profile.env_groups)


def _lines(values: Mapping[str, str]) -> Lines:
    return [(yaml_key(name), compose_text(value)) for name, value in values.items()]


def _ca(profile: Profile) -> Quoted:
    path = profile.network.ca_certificates
    default = names.compose_path(path) if path else "/dev/null"
    return compose_variable(names.CA_VARIABLE, default, reason="the PEM file of your CA certificates")


def _wheelhouse(profile: Profile) -> Quoted | None:
    path = profile.build.wheelhouse
    if path is None:
        return None
    return compose_variable(names.WHEELHOUSE_VARIABLE, names.compose_path(path), reason="your folder of wheels")


def _volumes(profile: Profile, key: str) -> list[Volume]:
    bind, volume = Quoted("bind"), Quoted("volume")
    found = []
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        default = names.compose_path(source.origin.checkout)
        text = compose_variable(names.checkout_variable(name), default, reason=f"the folder of your {name} checkout")
        found.append(Volume(bind, text, compose_text(source.mount.path), create_host_path="false"))
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
            found.append(Volume(bind, text, target, create_host_path="true"))
    found.append(Volume(bind, _ca(profile), compose_text(names.CA_FILE), read_only=True, create_host_path="false"))
    return found


def _named_volumes(profile: Profile, key: str) -> Lines:
    found = {"overlay": names.overlay_volume(profile)} if profile.mounted_sources else {}
    found |= {f"cache-{n}": volume_of(profile, n, key) for n, cache in profile.caches.items() if cache.host is None}
    return [(Quoted(name), compose_text(volume)) for name, volume in found.items()]


def _mounts(service: str, described: Service) -> list[Volume]:
    found = []
    for name, mount in described.mounts.items():
        reason = f"the file or folder {name} of {service}"
        text = compose_variable(names.mount_variable(service, name), names.compose_path(mount.host), reason=reason)
        target = compose_text(mount.path.path)
        found.append(Volume(Quoted("bind"), text, target, mount.read_only, create_host_path="false"))
    return found


def _deploy(service: Service, mode: GpuMode) -> Quoted | None:
    """Compose's `deploy` for the GPUs that a service names; nothing where it gets what all get."""
    if service.gpu is None or mode not in (GpuMode.ALL, GpuMode.CDI):
        return None
    if not service.gpu:
        return Quoted("{}")
    driver, prefix = ("nvidia", "") if mode is GpuMode.ALL else ("cdi", "nvidia.com/gpu=")
    ids = ", ".join(compose_text(f"{prefix}{one}") for one in service.gpu)
    device = f"{{driver: {driver}, device_ids: [{ids}], capabilities: [gpu]}}"
    return Quoted(f"{{resources: {{reservations: {{devices: [{device}]}}}}}}")


def _service(profile: Profile, name: str, number: int, key: str) -> dict[str, object]:
    service = profile.services[name]
    chosen = [n for n in groups_in_use(profile) if service.env_groups is None or n in service.env_groups]
    # YAML merges let the first of a list win, so the strongest group stands first.
    user = ["*user"] if names.user_env(profile, name) else []
    aliases = [*(f"*env-{group}" for group in reversed(chosen)), *user, "*env-derived", "*env-passed"]
    env = _lines(service.env)
    if service.model is not None and OFFLINE not in service.env:
        # `up` starts it when all weights are there, and then no hub can stop it.
        env.insert(0, (yaml_key(OFFLINE), compose_variable(names.OFFLINE_VARIABLE, "0")))
    return {
        "name": yaml_key(name),
        "groups": Quoted(", ".join(aliases)),
        "env": env,
        "service": service,
        "health_test": _health_test(service.health) if service.health else (),
        # Only the first service starts when none is named; `up NAME` starts exactly that one.
        "profile": name if number else "",
        "user": _user(profile, name),
        # All of them, where it has more than the others.
        "volumes": [*_volumes(profile, key), *_mounts(name, service)] if service.mounts else [],
        "labels": _lines({**service.labels, **({VARIANT: profile.variant} if profile.variant else {})}),
        "deploy": _deploy(service, profile.gpu),
        "ports": [_port(name, port) for port in service.ports],
    }


def _port(service: str, port: PortMapping) -> Quoted:
    number = f"${{{names.port_variable(service, port)}:-{port.container}}}"
    return yaml_text(str(port).replace("auto", number))


def _user(profile: Profile, service: str) -> Quoted | None:
    """Compose's `user`. Who starts a service is not known here; with plain `docker compose up` it is root."""
    user = profile.user_of(service)
    if user == "host":
        return yaml_text(f"${{{names.UID_VARIABLE}:-0}}:${{{names.GID_VARIABLE}:-0}}")
    return yaml_text("0:0" if user == "root" else user) if user else None


def _health_test(health: Health) -> tuple[str, ...]:
    if health.http is not None:
        return ("CMD", f"{names.HOME}/bin/envgen-health", str(health.port), health.http)
    return ("CMD", names.WITH_START_UP, *health.command)
