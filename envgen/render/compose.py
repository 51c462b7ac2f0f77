"""What compose.yaml.j2 prints of a profile; settings of all services stand there once, with an anchor."""

from __future__ import annotations

from collections.abc import Sequence

from envgen.binding import JsonDict
from envgen.engine.values import SERVER
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import GpuMode, Mode, Profile
from envgen.profile.service import Health, Service
from envgen.profile.values import ContainerPath, HostPath, own_path
from envgen.render import environment as names
from envgen.render.locking import folder_of, volume_of
from envgen.render.quote import Interpolated, compose_variable, render

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
OFFLINE = "HF_HUB_OFFLINE"
CLUSTER_PARTS = ("head", "worker", "rdma")
# What hangs between machines that have no NVLink.
OVER_NVLINK = ("NCCL_NVLS_ENABLE", "VLLM_ALLREDUCE_USE_FLASHINFER")
Block = JsonDict


def compose_files(profile: Profile, key: str = "", *, is_locked: bool = True) -> dict[str, str]:
    """Path relative to the project -> text: the file, and the additional files for machines of a
    cluster.

    ``key``: the namespace of FlashInfer's cache.
    """
    document = {**_document(profile, key), "is_locked": is_locked}
    files = {profile.compose_file: render("compose.yaml.j2", document)}
    for name, service in profile.services.items():
        if service.cluster is not None:
            for part in CLUSTER_PARTS:
                text = render("cluster.yaml.j2", _rank(profile, name, part))
                files[cluster_file(profile, name, part)] = text
    return files


def _started(profile: Profile) -> str:
    """The service that starts when none is named: in development a shell where there is one, else
    the first.
    """
    names = list(profile.services)
    if profile.mode is Mode.DEVELOPMENT:
        names.sort(key=lambda name: not profile.services[name].interactive)
    return names[0] if names else ""


def cluster_file(profile: Profile, service: str, part: str) -> str:
    """The Compose file to add with `-f` on a machine of a cluster: one of CLUSTER_PARTS."""
    return f"compose/{profile.name}.{service}.{part}.yaml"


def _rank(profile: Profile, name: str, part: str) -> Block:
    """The settings of one rank besides the service's own. Facts about a machine are variables."""
    service = profile.services[name]
    rank = compose_variable(names.NODE_RANK, None, reason="this machine's rank: 0 for the head")
    master = compose_variable(names.HEAD_ADDRESS, None, reason="the head's address on the cable")
    given = {*service.env, *profile.env}
    unlinked = OVER_NVLINK if profile.cuda.arch_list.shares_memory else ()
    return {
        "written": names.WRITTEN,
        "file": profile.compose_file,
        "name": name,
        "part": part,
        "command": [SERVER, *server_words(service, rank, master, leads=part == "head")],
        "turned_off": [name for name in unlinked if name not in given],
    }


def server_words(service: Service, rank: str, master: str, *, leads: bool) -> list[str]:
    """The command of a service on one machine, with the words that its cluster adds.

    Containers, pods and `predict` have it from here. ``rank`` and ``master`` are what each of them
    writes for the machine's rank and the head's address; only the head ``leads``.
    """
    words = list(service.argv)
    if service.cluster is None:
        return words
    added = {
        "distributed-executor-backend": "mp",
        "nnodes": str(len(service.cluster.nodes)),
        "master-port": str(service.cluster.port),
        "node-rank": rank,
        "master-addr": master,
    }
    for flag, value in added.items():
        words += [f"--{flag}", value]
    return words if leads else [*words, "--headless"]


def _document(profile: Profile, key: str) -> Block:
    """What the template prints."""
    services = profile.services
    started = _started(profile)
    others = [name for name in services if name != started]
    fetched = [one.model for one in services.values() if profile.only_reads_weights]
    # Without a number ninja starts all, and compile-gate decides. Never empty: vLLM's setup.py
    # reads a number.
    jobs = str(profile.build.max_jobs.count or names.ALL_JOBS)
    # One for all services, unless one of them has its own.
    floors = {names.memory_floor(profile, name) for name in services}
    floor = _floor(*floors) if len(floors) == 1 else ""
    users = (names.user_env(profile, name) for name in services)
    volumes = {}
    for name, cache in profile.caches.items():
        if cache.host is None:
            volumes[f"cache-{name}"] = volume_of(profile, name, key)
    wheels = profile.build.wheelhouse
    return {
        "profile": profile,
        "key": key,
        "written": names.WRITTEN,
        "not_locked": names.NOT_LOCKED,
        "proxy": PROXY,
        "started": started,
        "another": "".join(others[:1]),
        "fetched": dict.fromkeys(filter(None, fetched)),
        "mounted": profile.mounted_sources,
        "own_file": own_path(profile.compose.path) if profile.compose else "",
        "runs_as_host": any(profile.user_of(name) == "host" for name in services),
        "never_restarts": all(service.restart == "no" for service in services.values()),
        "platform": profile.base.platform.value if profile.base.platform else "",
        "wheelhouse": wheels and _host(names.WHEELHOUSE_VARIABLE, wheels, "your folder of wheels"),
        "secrets": _secrets(profile),
        "devices": _devices(written_mode(profile)),
        "volumes": _volumes(profile, key),
        "jobs": compose_variable(names.JOBS_VARIABLE, jobs),
        "floor": floor,
        "derived": names.service_env(profile),
        "passed": dict.fromkeys((*profile.secrets, *PROXY)),
        "user_env": next(filter(None, users), {}),
        "services": [_service(profile, name, key, floor) for name in services],
        "overlay": names.overlay_volume(profile) if profile.mounted_sources else "",
        "cache_volumes": volumes,
    }


def _floor(floor: str) -> str:
    """The value of memory-guard's variable; "" without it."""
    return compose_variable(names.FLOOR_VARIABLE, floor) if floor else ""


def _devices(mode: GpuMode, ids: Sequence[object] | None = None) -> list[Block]:
    """The devices of a service for an engine of this kind. ``ids``: the GPUs that it names."""
    if mode not in (GpuMode.ALL, GpuMode.CDI) or ids == ():
        return []
    device: Block = {"driver": "nvidia"}
    if mode is GpuMode.CDI:
        device["driver"] = "cdi"
        device["device_ids"] = [f"nvidia.com/gpu={one}" for one in ids or ("all",)]
    elif ids is None:
        device["count"] = "all"
    else:
        device["device_ids"] = list(map(str, ids))
    device["capabilities"] = ["gpu"]
    return [device]


def written_mode(profile: Profile) -> GpuMode:
    """The GPU mode in the rendered file. Where the engine decides: as `docker run --gpus`, which
    works with
    DGX OS and every NVIDIA container toolkit as installed; CDI needs a specification first."""
    return GpuMode.ALL if profile.gpu.asks_engine else profile.gpu


def gpu_devices(service: Service, mode: GpuMode) -> list[Block]:
    """The value of `deploy.resources.reservations.devices` of a service for an engine of this kind."""
    return _devices(mode, service.gpu)


def _host(variable: str, path: HostPath, reason: str, after: str = "") -> Interpolated:
    """A path of the host: a variable, with a default unless only one machine has it."""
    return compose_variable(variable, names.compose_path(path), reason=reason, after=after)


def _secrets(profile: Profile) -> Block:
    """What a build reads and no layer keeps: the number of compilers, this machine's CA and logins."""
    secrets = {}
    if any(source.origin.is_built for source in profile.sources.values()):
        secrets["jobs"] = {"environment": names.JOBS_VARIABLE}
    ca = profile.network.ca_certificates
    if ca is not None:
        secrets["ca_certificates"] = {"file": _ca(ca)}
    if names.asks_logins(profile):
        secrets["netrc"] = {"file": _netrc(profile)}
    return secrets


def _ca(path: HostPath) -> Interpolated:
    return _host(names.CA_VARIABLE, path, "the PEM file of your CA certificates")


def _netrc(profile: Profile) -> Interpolated:
    path = profile.pip.netrc
    if path is None:
        return compose_variable(names.NETRC_VARIABLE, "/dev/null")
    return _host(names.NETRC_VARIABLE, path, "the netrc file with logins of package indexes")


def _bind(
    source: str, target: ContainerPath, *, read_only: bool = False, create: bool = False
) -> Block:
    """``create``: create a missing folder on the host."""
    made: Block = {"type": "bind", "source": source, "target": target.path}
    if read_only:
        made["read_only"] = True
    return {**made, "bind": {"create_host_path": create}}


def _volume(name: str, target: str) -> Block:
    return {"type": "volume", "source": name, "target": target}


def _volumes(profile: Profile, key: str) -> list[Block]:
    volumes = []
    for name, folder in profile.checkouts.items():
        variable = names.checkout_variable(name)
        text = _host(variable, folder, f"the folder of your {name} checkout")
        volumes.append(_bind(text, profile.sources[name].mount))
    if profile.mounted_sources:
        volumes.append(_volume("overlay", names.OVERLAY))
    for name, cache in profile.caches.items():
        if cache.host is None:
            volumes.append(_volume(f"cache-{name}", cache.path.path))
        else:
            variable = names.cache_variable(name)
            below = folder_of(name, key)
            text = _host(variable, cache.host, f"a folder for the cache {name}", below)
            read_only = name == HUGGINGFACE.name and profile.only_reads_weights
            volumes.append(_bind(text, cache.path, read_only=read_only, create=not read_only))
    if profile.mounted_sources and names.asks_logins(profile):
        volumes.append(_bind(_netrc(profile), ContainerPath(names.NETRC_FILE), read_only=True))
    ca = profile.network.ca_certificates
    if ca is not None:
        volumes.append(_bind(_ca(ca), ContainerPath(names.CA_FILE), read_only=True))
    return volumes


def _mounts(service: str, described: Service) -> list[Block]:
    binds = []
    for name, mount in described.mounts.items():
        variable = names.mount_variable(service, name)
        text = _host(variable, mount.host, f"the file or folder {name} of {service}")
        binds.append(_bind(text, mount.path, read_only=mount.read_only))
    return binds


def _deploy(service: Service, mode: GpuMode) -> Block | None:
    """Compose's `deploy` for the GPUs that a service names; None where it names none."""
    if service.gpu is None or mode is GpuMode.NONE:
        return None
    devices = _devices(mode, service.gpu)
    return {"resources": {"reservations": {"devices": devices}}} if devices else {}


def _service(profile: Profile, name: str, key: str, shared_floor: str) -> Block:
    service = profile.services[name]
    # `up` starts it only with all weights, and then without the hub.
    offline = ""
    if service.model is not None and OFFLINE not in service.env:
        only = "1" if profile.only_reads_weights else "0"
        offline = compose_variable(names.OFFLINE_VARIABLE, only)
    is_user = profile.user_of(name) not in ("", "root")
    command = list(service.argv)
    if service.serves:
        command.insert(0, SERVER)
    volumes = []
    if service.mounts:  # the whole list, where it has mounts of its own
        volumes = [*_volumes(profile, key), *_mounts(name, service)]
    health = []
    if service.health:
        health = ["CMD", *health_words(service, service.health)]
    return {
        "name": name,
        "described": service,
        "command": command,
        "offline": offline,
        "floor": "" if shared_floor else _floor(names.memory_floor(profile, name)),
        "user": _user(profile, name),
        "is_user": is_user,
        "drops": profile.mode is Mode.PRODUCTION and service.serves and is_user,
        "deploy": _deploy(service, written_mode(profile)),
        "volumes": volumes,
        "health": health,
    }


def _user(profile: Profile, service: str) -> str | None:
    """Compose's `user`; with plain `docker compose up`, `host` is root."""
    user = profile.user_of(service)
    if user == "host":
        return Interpolated(f"${{{names.UID_VARIABLE}:-0}}:${{{names.GID_VARIABLE}:-0}}")
    return "0:0" if user == "root" else user or None


def health_words(service: Service, health: Health) -> list[str]:
    """The command that checks the health of a service, in its container."""
    words = [
        f"{names.HOME}/bin/envgen-health",
        "--port",
        str(service.http_port),
        "--path",
        health.http,
    ]
    asks = health.complete.seconds and health.wedged != "off"
    if service.ready and service.ready.model and asks:
        limit = str(max(1, health.timeout.seconds - 2))  # shorter than Docker's timeout
        words += ["--model", service.ready.model]
        words += ["--idle", str(health.complete.seconds), "--limit", limit]
        if health.wedged == "restart":
            words += ["--wedged", "restart"]
    return words
