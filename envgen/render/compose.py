"""Compose files from a profile: what is the same for all services stands once, behind an anchor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envgen.profile.model import Cluster, GpuMode, Health, Profile, Service
from envgen.profile.values import ContainerPath, HostPath, own_path
from envgen.render import environment as names
from envgen.render.locking import folder_of, volume_of
from envgen.render.quote import Quoted, compose_text, compose_variable, render, yaml_key, yaml_text

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
STOP_GRACE = "30s"
OFFLINE = "HF_HUB_OFFLINE"
CLUSTER_PARTS = ("head", "worker", "rdma")
VARIANT = "dev.envgen.variant"


Block = Mapping[str, Any]  # keys and texts ready to print, mappings and lists of them; what is None or empty goes


def compose_files(profile: Profile, key: str = "") -> dict[str, str]:
    """Path relative to the project -> text: the file, and the GPU overlays where the profile leaves that open.

    ``key``: the namespace of FlashInfer's cache.
    """
    context = _context(profile, key)
    files = {profile.compose_file: render("compose.yaml.j2", context)}
    if profile.gpu.asks_engine:
        for mode in (GpuMode.ALL, GpuMode.CDI):
            more = {
                "gpu": _lines({"deploy": _GPUS[mode]}),
                "services": _lines({
                    yaml_key(name): {"deploy": own} if (own := _deploy(one, mode)) else {"<<": Quoted("*gpu")}
                    for name, one in profile.services.items()
                }),
            }  # fmt: skip
            files[overlay_file(profile, mode)] = render("compose.gpu.yaml.j2", {**context, **more})
    for name, service in profile.services.items():
        if service.cluster is not None:
            for part in CLUSTER_PARTS:
                text = render("compose.cluster.yaml.j2", _cluster(profile, name, part))
                files[cluster_file(profile, name, part)] = text
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
    facts = {
        "rank": (names.NODE_RANK, "this machine's rank: 0 for the head"),
        "address": (names.NODE_ADDRESS, "this machine's address on the cable"),
        "interface": (names.NODE_INTERFACE, "the interface of that address"),
        "master": (names.HEAD_ADDRESS, "the head's address on the cable"),
        "rdma": (names.NODE_RDMA, "this machine's RDMA devices"),
    }
    variables = {key: compose_variable(name, None, reason=reason) for key, (name, reason) in facts.items()}
    return {"profile": profile, "part": part, "name": yaml_key(name), "words": words, **variables}


def cluster_flags(cluster: Cluster) -> list[str]:
    """What all ranks say of the whole; where the head is, and which rank this one has, follows."""
    flags = {"distributed-executor-backend": "mp", "nnodes": str(len(cluster.nodes)), "master-port": str(cluster.port)}
    return [word for flag, value in flags.items() for word in (f"--{flag}", value)]


def overlay_file(profile: Profile, mode: GpuMode) -> str:
    """The Compose file to add with `-f` for a GPU mode, where the profile leaves it to the engine."""
    return f"compose/{profile.name}.gpu-{mode.value}.yaml"


def _lines(block: Block, pad: str = "") -> list[Quoted]:
    return [Quoted(pad + line) for line in _printed(block)]


def _printed(block: Block) -> Iterator[str]:
    for key, value in block.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not isinstance(text, Quoted):
                raise TypeError(f"{key}: {text!r} was not quoted")
        if isinstance(value, str):
            yield f"{key}: {value}".rstrip()
        elif value:
            yield f"{key}:"
        if isinstance(value, Mapping):
            yield from (f"  {line}" for line in _printed(value))
        elif isinstance(value, list):
            for item in value:
                first, *rest = [item] if isinstance(item, str) else _printed(item)
                yield from (f"  - {first}", *(f"    {line}" for line in rest))


def _context(profile: Profile, key: str) -> dict[str, object]:
    user_env = next((env for name in profile.services if (env := names.user_env(profile, name))), None)
    # Empty where no number is given: the entry point then lets ninja start all, and compile-gate decides.
    jobs = compose_variable(names.JOBS_VARIABLE, str(profile.build.max_jobs.count or ""))
    proxy = [name for name in PROXY if profile.network.pass_proxy]
    passed = [*profile.secrets, *(name for name in proxy if name not in profile.secrets)]
    derived = {"MAX_JOBS": jobs, **_texts(names.service_env(profile))}
    blocks: list[tuple[str, str, Block]] = [
        ("service", "", _common(profile, key, proxy)),
        ("env-derived", "What follows from the profile itself.", derived),
        (
            "env-passed",
            "Taken from the shell that starts a service; never stored.",
            {yaml_key(name): Quoted("") for name in passed},
        ),
        *([("user", "", _texts(user_env))] if user_env else []),
        *((f"env-{name}", "", _texts(group)) for name, group in profile.env.items()),
    ]
    named = {"overlay": names.overlay_volume(profile)} if profile.mounted_sources else {}
    named |= {f"cache-{n}": volume_of(profile, n, key) for n, cache in profile.caches.items() if cache.host is None}
    # The caches of a copy (`instance`) are those of the plain one: its `down --volumes` must leave them.
    shared = [f"cache-{name}" for name in profile.caches] if profile.instance else []
    return {
        "profile": profile,
        "blocks": [(Quoted(name), Quoted(comment), _lines(block, "  ")) for name, comment, block in blocks],
        "services": [
            (yaml_key(name), _lines(_service(profile, name, number, key), "    "))
            for number, name in enumerate(profile.services)
        ],
        "named_volumes": _lines({
            name: {"name": compose_text(volume), "external": Quoted("true") if name in shared else None}
            for name, volume in named.items()
        }, "  "),
        "overlay": overlay_file(profile, GpuMode.ALL) if profile.gpu.asks_engine else "",
        "own": own_path(profile.compose.path) if profile.compose is not None else "",
        "ca": _ca(profile),
    }  # fmt: skip


def _common(profile: Profile, key: str, proxy: list[str]) -> Block:
    """What all services have in common."""
    platform = compose_text(profile.base.platform.value) if profile.base.platform else None
    shm = profile.shm_size if profile.ipc != "host" else None
    wheels = profile.build.wheelhouse
    wheelhouse = {"wheelhouse": _host(names.WHEELHOUSE_VARIABLE, wheels, "your folder of wheels")} if wheels else None
    return {
        "image": compose_text(profile.image_name),
        "platform": platform,
        "build": {
            "context": Quoted(".."),
            "dockerfile": compose_text(profile.dockerfile),
            "platforms": platform and Quoted(f"[{platform}]"),
            "args": {yaml_key(name): Quoted("") for name in proxy},
            "additional_contexts": wheelhouse,
            "secrets": Quoted("[jobs, ca_certificates]"),
        },
        "init": Quoted("true"),
        "ipc": compose_text(profile.ipc),
        "shm_size": compose_text(str(shm.bytes)) if shm else None,
        "ulimits": {
            yaml_key(name): Quoted(f"{{soft: {one.soft}, hard: {one.hard}}}") for name, one in profile.ulimits.items()
        },
        "working_dir": compose_text(profile.working_dir.path),
        "stop_grace_period": compose_text(STOP_GRACE),
        "deploy": _GPUS.get(profile.gpu),
        "volumes": _volumes(profile, key),
    }


_GPUS: Mapping[GpuMode, Block] = {
    mode: {"resources": {"reservations": {"devices": [Quoted(f"{{driver: {device}, capabilities: [gpu]}}")]}}}
    for mode, device in (
        (GpuMode.ALL, "nvidia, count: all"), (GpuMode.CDI, 'cdi, device_ids: ["nvidia.com/gpu=all"]'),
    )
}  # fmt: skip


def _texts(values: Mapping[str, str]) -> dict[str, Quoted]:
    return {yaml_key(name): compose_text(value) for name, value in values.items()}


def _host(variable: str, path: HostPath, reason: str, after: str = "") -> Quoted:
    """A path of the host: a variable, with a default unless only one machine has it."""
    return compose_variable(variable, names.compose_path(path), reason=reason, after=after)


def _ca(profile: Profile) -> Quoted:
    path = profile.network.ca_certificates
    if path is None:
        return compose_variable(names.CA_VARIABLE, "/dev/null")
    return _host(names.CA_VARIABLE, path, "the PEM file of your CA certificates")


def _bind(source: Quoted, target: ContainerPath, *, read_only: bool = False, create: str = "false") -> Block:
    """``create``: whether a missing folder of the host is made."""
    return {
        "type": Quoted("bind"),
        "source": source,
        "target": compose_text(target.path),
        "read_only": Quoted("true") if read_only else None,
        "bind": Quoted(f"{{create_host_path: {create}}}"),
    }


def _volume(name: str, target: str) -> Block:
    return {"type": Quoted("volume"), "source": Quoted(name), "target": compose_text(target)}


def _volumes(profile: Profile, key: str) -> list[Block]:
    found = []
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        text = _host(names.checkout_variable(name), source.origin.checkout, f"the folder of your {name} checkout")
        found.append(_bind(text, source.mount))
    if profile.mounted_sources:
        found.append(_volume("overlay", names.OVERLAY))
    for name, cache in profile.caches.items():
        if cache.host is None:
            found.append(_volume(f"cache-{name}", cache.path.path))
        else:
            variable, below = names.cache_variable(name), folder_of(name, key)
            text = _host(variable, cache.host, f"a folder for the cache {name}", below)
            found.append(_bind(text, cache.path, create="true"))
    return [*found, _bind(_ca(profile), ContainerPath(names.CA_FILE), read_only=True)]


def _mounts(service: str, described: Service) -> list[Block]:
    found = []
    for name, mount in described.mounts.items():
        text = _host(names.mount_variable(service, name), mount.host, f"the file or folder {name} of {service}")
        found.append(_bind(text, mount.path, read_only=mount.read_only))
    return found


def _deploy(service: Service, mode: GpuMode) -> Quoted | None:
    """Compose's `deploy` for the GPUs that a service names; nothing where it gets what all get."""
    if service.gpu is None or mode not in _GPUS:
        return None
    if not service.gpu:
        return Quoted("{}")
    driver, prefix = ("nvidia", "") if mode is GpuMode.ALL else ("cdi", "nvidia.com/gpu=")
    ids = ", ".join(compose_text(f"{prefix}{one}") for one in service.gpu)
    device = f"{{driver: {driver}, device_ids: [{ids}], capabilities: [gpu]}}"
    return Quoted(f"{{resources: {{reservations: {{devices: [{device}]}}}}}}")


def _service(profile: Profile, name: str, number: int, key: str) -> Block:
    service = profile.services[name]
    chosen = [n for n in profile.env if service.env_groups is None or n in service.env_groups]
    # YAML merges let the first of a list win, so the strongest group stands first.
    user = ["*user"] if names.user_env(profile, name) else []
    aliases = [*(f"*env-{group}" for group in reversed(chosen)), *user, "*env-derived", "*env-passed"]
    # `up` starts it when all weights are there, and then no hub can stop it.
    offline = service.model is not None and OFFLINE not in service.env
    labels = {**service.labels, **({VARIANT: profile.variant} if profile.variant else {})}
    copy = f"--{profile.instance}" if profile.instance else ""

    def text(value: object, after: str = "") -> Quoted | None:
        return None if value is None else compose_text(f"{value}{after}")

    yes = Quoted("true") if service.interactive else None
    return {
        "<<": Quoted("*service"),
        # Only the first service starts when none is named; `up NAME` starts exactly that one.
        "profiles": Quoted(f"[{text(name)}]") if number else None,
        "command": [compose_text(word) for word in service.argv],
        "environment": {
            "<<": Quoted(f"[{', '.join(aliases)}]"),
            **({OFFLINE: compose_variable(names.OFFLINE_VARIABLE, "0")} if offline else {}),
            **_texts(service.env),
        },
        "working_dir": text(service.working_dir),
        "user": _user(profile, name),
        "cpuset": text(service.cpuset),
        "stdin_open": yes,
        "tty": yes,
        "ports": [
            yaml_text(str(port).replace("auto", f"${{{names.port_variable(name, port)}:-{port.container}}}"))
            for port in service.ports
        ],
        "restart": text(service.restart),
        "labels": _texts(labels),
        "container_name": text(service.container_name, copy),
        "network_mode": text(service.network),
        "shm_size": text(service.shm_size and service.shm_size.bytes),
        "devices": [compose_text(device) for device in service.devices],
        "cap_add": [compose_text(capability) for capability in service.cap_add],
        "deploy": _deploy(service, profile.gpu),
        # All of them, where it has more than the others.
        "volumes": [*_volumes(profile, key), *_mounts(name, service)] if service.mounts else [],
        "healthcheck": _health(service.health) if service.health else None,
    }


def _user(profile: Profile, service: str) -> Quoted | None:
    """Compose's `user`. Who starts a service is not known here; with plain `docker compose up` it is root."""
    user = profile.user_of(service)
    if user == "host":
        return yaml_text(f"${{{names.UID_VARIABLE}:-0}}:${{{names.GID_VARIABLE}:-0}}")
    return yaml_text("0:0" if user == "root" else user) if user else None


def _health(health: Health) -> Block:
    words = [names.WITH_START_UP, *health.command]
    if health.http is not None:
        words = [f"{names.HOME}/bin/envgen-health", str(health.port), health.http]
    return {
        "test": Quoted(f"[{', '.join(map(compose_text, ('CMD', *words)))}]"),
        "interval": compose_text(str(health.interval)),
        "timeout": compose_text(str(health.timeout)),
        "retries": Quoted(health.retries),
        "start_period": compose_text(str(health.start_period)),
    }
