"""Compose files from a profile; settings of all services are written once, with an anchor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envgen.engine.values import SERVER
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import GpuMode, Mode, Profile
from envgen.profile.service import Health, Service
from envgen.profile.values import ContainerPath, HostPath, own_path
from envgen.render import environment as names
from envgen.render.locking import folder_of, volume_of
from envgen.render.quote import MERGE, Interpolated, compose_text, compose_variable

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
STOP_GRACE = "30s"
# 100 MiB hold a week of a request each second.
LOGGING = {"driver": "json-file", "options": {"max-size": "100m", "max-file": "3"}}
OFFLINE = "HF_HUB_OFFLINE"
CLUSTER_PARTS = ("head", "worker", "rdma")
_PARTS = (
    "Add it with a second -f. head: rank 0, which has the API; worker: all other ranks, which have no API;",
    "rdma: for machines with RDMA devices, besides one of the other two.",
)
VARIANT = "dev.envgen.variant"
# NVLink SHARP. Machines that share memory have no NVLink, and NCCL 2.30 hung there while a model
# loaded (github.com/NVIDIA/nccl/issues/2167).
NVLS = "NCCL_NVLS_ENABLE"
Block = dict[str, Any]


def compose_files(profile: Profile, key: str = "", *, is_locked: bool = True) -> dict[str, str]:
    """Path relative to the project -> text: the file, and the additional files for machines of a
    cluster.

    ``key``: the namespace of FlashInfer's cache.
    """
    files = {profile.compose_file: compose_text(_head(profile, is_locked), _document(profile, key))}
    for name, service in profile.services.items():
        if service.cluster is not None:
            head = [
                f"{names.WRITTEN}: additions to {profile.compose_file} on a machine of a cluster.",
                *_PARTS,
            ]
            for part in CLUSTER_PARTS:
                added = {"services": {name: _rank(profile, service, part)}}
                files[cluster_file(profile, name, part)] = compose_text(head, added)
    return files


def _head(profile: Profile, is_locked: bool) -> Iterable[str]:
    file = f"-f {profile.compose_file}"
    yield f"{names.WRITTEN} from profile {profile.name}. Edits here are lost: change the project file."
    if not is_locked:
        yield names.NOT_LOCKED
    yield ""
    yield "Without envgen, in the project folder:"
    if any(profile.user_of(name) == "host" for name in profile.services):
        yield "  export ENVGEN_UID=$(id -u) ENVGEN_GID=$(id -g)         # else they run as root"
    if profile.only_reads_weights:
        models = [service.model for service in profile.services.values() if service.model]
        for model in dict.fromkeys(models):
            words = f"  hf download {model.repo} --revision {model.revision}"
            yield words.removesuffix(" --revision main").ljust(60) + "# or `envgen model pull`"
    yield f"  docker compose {file} build"
    started = _started(profile)
    others = [name for name in profile.services if name != _started(profile)]
    if profile.mounted_sources:
        yield f"  docker compose {file} run --rm {started} envgen-install   # once: installs the checkouts"
    yield f"  docker compose {file} up -d".ljust(60) + f"# {started}"
    yield from (f"  docker compose {file} up -d {name}" for name in others[:1])
    if profile.compose is not None:
        yield f"  and your own file, last:  -f {own_path(profile.compose.path)}"
    yield f"  docker compose {file} --profile '*' down"
    yield "ENVGEN_... variables hold what differs between machines; each has a default where one is possible."
    yield "Variables below x-env-passed come from the shell that starts a service; they are never stored."
    if all(service.restart == "no" for service in profile.services.values()):
        yield "There is no `restart:`: a server that failed stays down, for its log; the key `restart` changes that."


def _started(profile: Profile) -> str:
    """The service that starts when none is named: in development a shell where there is one, else
    the first.
    """
    shells = [name for name, service in profile.services.items() if service.interactive]
    return next(
        iter(
            [*shells, *profile.services] if profile.mode is Mode.DEVELOPMENT else profile.services
        ),
        "",
    )


def cluster_file(profile: Profile, service: str, part: str) -> str:
    """The Compose file to add with `-f` on a machine of a cluster: one of CLUSTER_PARTS."""
    return f"compose/{profile.name}.{service}.{part}.yaml"


def _rank(profile: Profile, service: Service, part: str) -> Block:
    """The settings of one rank besides the service's own. Facts about a machine are variables."""

    def fact(name: str, reason: str) -> Interpolated:
        return compose_variable(name, None, reason=reason)

    if part == "rdma":
        return {
            "devices": ["/dev/infiniband"],
            "cap_add": ["IPC_LOCK"],  # RDMA pins memory
            "ulimits": {"memlock": {"soft": -1, "hard": -1}},
            "environment": {"NCCL_IB_HCA": fact(names.NODE_RDMA, "this machine's RDMA devices")},
        }
    rank = fact(names.NODE_RANK, "this machine's rank: 0 for the head")
    master = fact(names.HEAD_ADDRESS, "the head's address on the cable")
    interface = fact(names.NODE_INTERFACE, "the interface of that address")
    own_nvls = NVLS in service.env or any(NVLS in group for group in profile.env.values())
    words = server_words(service, rank, master, leads=part == "head")
    return {
        "command": [SERVER, *words],
        "network_mode": "host",
        "environment": {
            # Without it vLLM uses the interface of the default route.
            "VLLM_HOST_IP": fact(names.NODE_ADDRESS, "this machine's address on the cable"),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            # So that the log shows whether NCCL uses RDMA (NET/IB) or TCP (NET/Socket).
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            **({NVLS: "0"} if profile.cuda.arch_list.shares_memory and not own_nvls else {}),
        },
        **({"healthcheck": {"disable": True}} if part == "worker" else {}),
        "labels": {"dev.envgen.cluster": part},
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


def _filled(block: Block) -> Block:
    """``block`` without None and []."""
    return {key: value for key, value in block.items() if value is not None and value != []}


def _document(profile: Profile, key: str) -> Block:
    user_env = next(
        (env for name in profile.services if (env := names.user_env(profile, name))), None
    )
    # Without a number ninja starts all, and compile-gate decides. Never empty: vLLM's setup.py
    # reads a number.
    jobs = compose_variable(
        names.JOBS_VARIABLE, str(profile.build.max_jobs.count or names.ALL_JOBS)
    )
    # One for all services, unless one of them has its own.
    floors = {names.memory_floor(profile, name) for name in profile.services}
    guard = _floor(floors.pop()) if len(floors) == 1 else {}
    blocks: dict[str, Block] = {
        "service": _common(profile, key),
        "env-derived": {"MAX_JOBS": jobs, **guard, **names.service_env(profile)},
        "env-passed": dict.fromkeys((*profile.secrets, *PROXY)),
        **({"user": user_env} if user_env else {}),
        **{f"env-{name}": dict(group) for name, group in profile.env.items()},
    }
    volumes: Block = (
        {"overlay": {"name": names.overlay_volume(profile)}} if profile.mounted_sources else {}
    )
    for name, cache in profile.caches.items():
        if cache.host is None:
            volumes[f"cache-{name}"] = {"name": volume_of(profile, name, key)}
    return _filled(
        {
            "name": profile.compose_name,
            **{f"x-{name}": block for name, block in blocks.items()},
            "services": {name: _service(profile, name, key, blocks) for name in profile.services},
            "volumes": volumes or None,
            "secrets": _secrets(profile) or None,
        }
    )


def _floor(floor: str) -> Block:
    """The variable of memory-guard; {} without it."""
    name = names.FLOOR_VARIABLE
    return {name: compose_variable(name, floor)} if floor else {}


def _common(profile: Profile, key: str) -> Block:
    """The settings of all services."""
    platform = profile.base.platform.value if profile.base.platform else None
    shm = profile.shm_size if profile.ipc != "host" else None
    wheels = profile.build.wheelhouse
    wheelhouse = (
        {"wheelhouse": _host(names.WHEELHOUSE_VARIABLE, wheels, "your folder of wheels")}
        if wheels
        else None
    )
    return _filled(
        {
            "image": profile.image_name,
            "platform": platform,
            "build": _filled(
                {
                    "context": "..",
                    "dockerfile": profile.dockerfile,
                    "platforms": [platform] if platform else None,
                    "args": list(PROXY),
                    "additional_contexts": wheelhouse,
                    "secrets": list(_secrets(profile)),
                }
            ),
            "init": True,
            "ipc": profile.ipc,
            "shm_size": str(shm.bytes) if shm else None,
            "ulimits": {
                name: {"soft": limit, "hard": limit} for name, limit in profile.ulimits.items()
            }
            or None,
            "working_dir": profile.working_dir.path,
            "stop_grace_period": STOP_GRACE,
            "logging": LOGGING,
            "deploy": _GPUS.get(written_mode(profile)),
            "volumes": _volumes(profile, key),
        }
    )


def _devices(**device: Any) -> Block:
    return {"resources": {"reservations": {"devices": [{**device, "capabilities": ["gpu"]}]}}}


_GPUS = {
    GpuMode.ALL: _devices(driver="nvidia", count="all"),
    GpuMode.CDI: _devices(driver="cdi", device_ids=["nvidia.com/gpu=all"]),
}


def written_mode(profile: Profile) -> GpuMode:
    """The GPU mode in the rendered file. Where the engine decides: as `docker run --gpus`, which
    works with
    DGX OS and every NVIDIA container toolkit as installed; CDI needs a specification first."""
    return GpuMode.ALL if profile.gpu.asks_engine else profile.gpu


def gpu_devices(service: Service, mode: GpuMode) -> list[Block]:
    """The value of `deploy.resources.reservations.devices` of a service for an engine of this kind."""
    deploy = _deploy(service, mode) if service.gpu is not None else _GPUS.get(mode)
    return list(deploy["resources"]["reservations"]["devices"]) if deploy else []


def _host(variable: str, path: HostPath, reason: str, after: str = "") -> Interpolated:
    """A path of the host: a variable, with a default unless only one machine has it."""
    return compose_variable(variable, names.compose_path(path), reason=reason, after=after)


def _secrets(profile: Profile) -> Block:
    """What a build reads and no layer keeps: the number of compilers, this machine's CA and logins."""
    secrets: dict[str, Any] = {}
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
    made = {"type": "bind", "source": source, "target": target.path, "read_only": read_only or None}
    return _filled({**made, "bind": {"create_host_path": create}})


def _volume(name: str, target: str) -> Block:
    return {"type": "volume", "source": name, "target": target}


def _volumes(profile: Profile, key: str) -> list[Block]:
    volumes = []
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        text = _host(
            names.checkout_variable(name),
            source.origin.checkout,
            f"the folder of your {name} checkout",
        )
        volumes.append(_bind(text, source.mount))
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
    if profile.network.ca_certificates is not None:
        volumes.append(
            _bind(
                _ca(profile.network.ca_certificates), ContainerPath(names.CA_FILE), read_only=True
            )
        )
    return volumes


def _mounts(service: str, described: Service) -> list[Block]:
    binds = []
    for name, mount in described.mounts.items():
        text = _host(
            names.mount_variable(service, name),
            mount.host,
            f"the file or folder {name} of {service}",
        )
        binds.append(_bind(text, mount.path, read_only=mount.read_only))
    return binds


def _deploy(service: Service, mode: GpuMode) -> Block | None:
    """Compose's `deploy` for the GPUs that a service names; None where it names none."""
    if service.gpu is None or mode not in _GPUS:
        return None
    driver, prefix = ("nvidia", "") if mode is GpuMode.ALL else ("cdi", "nvidia.com/gpu=")
    return (
        _devices(driver=driver, device_ids=[f"{prefix}{one}" for one in service.gpu])
        if service.gpu
        else {}
    )


def _service(profile: Profile, name: str, key: str, blocks: Mapping[str, Block]) -> Block:
    service = profile.services[name]
    # In a YAML merge the first of a list wins, so the strongest group comes first.
    user = ["user"] if names.user_env(profile, name) else []
    merged = [
        *(f"env-{group}" for group in reversed(list(profile.env))),
        *user,
        "env-derived",
        "env-passed",
    ]
    # `up` starts it only with all weights, and then without the hub.
    asks_hub = service.model is None or OFFLINE in service.env
    offline = "1" if profile.only_reads_weights else "0"
    floor = names.memory_floor(profile, name)
    is_user = profile.user_of(name) not in ("", "root")
    drops = profile.mode is Mode.PRODUCTION and service.serves and is_user
    return _filled(
        {
            MERGE: blocks["service"],
            # One service starts when none is named; `up NAME` starts exactly that one.
            "profiles": [name] if name != _started(profile) else None,
            "command": [*([SERVER] if service.serves else []), *service.argv],
            "environment": {
                MERGE: [blocks[block] for block in merged],
                **(
                    {} if asks_hub else {OFFLINE: compose_variable(names.OFFLINE_VARIABLE, offline)}
                ),
                **({} if names.FLOOR_VARIABLE in blocks["env-derived"] else _floor(floor)),
                **service.env,
            },
            "working_dir": service.working_dir and service.working_dir.path,
            "user": _user(profile, name),
            "group_add": ["0"] if is_user else None,
            "security_opt": ["no-new-privileges"] if service.serves else None,
            "cap_drop": ["ALL"] if drops else None,
            "stdin_open": service.interactive or None,
            "tty": service.interactive or None,
            "ports": [str(port) for port in service.ports],
            "restart": service.restart if service.restart != "no" else None,
            "labels": {VARIANT: profile.variant} if profile.variant else None,
            "network_mode": service.network,
            "shm_size": service.shm_size and str(service.shm_size.bytes),
            "deploy": _deploy(service, written_mode(profile)),
            # The whole list, where it has mounts of its own.
            "volumes": [*_volumes(profile, key), *_mounts(name, service)]
            if service.mounts
            else None,
            "healthcheck": _health(service, service.health) if service.health else None,
        }
    )


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


def _health(service: Service, health: Health) -> Block:
    return {
        "test": ["CMD", *health_words(service, health)],
        "interval": str(health.interval),
        "timeout": str(health.timeout),
        "retries": health.retries,
        "start_period": str(health.start_period),
    }
