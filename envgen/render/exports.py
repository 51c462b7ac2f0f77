"""Files for other tools: devcontainer.json, Kubernetes, systemd. Pure like all rendering."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from envgen.binding import JsonDict
from envgen.errors import RefusedError
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import GpuMode, Profile
from envgen.profile.service import Service
from envgen.profile.values import own_path
from envgen.render import environment as names
from envgen.render.compose import OFFLINE, health_words, server_words
from envgen.render.environment import OVERLAY
from envgen.render.quote import render


def devcontainer(profile: Profile, name: str, folder: str, options: Sequence[str] = ()) -> str:
    """The settings for service ``name``. ``folder``: of the file, relative to the project.
    ``options``: for `up`.
    """
    composed = [profile.compose_file]
    if profile.compose is not None:
        composed.append(own_path(profile.compose.path))
    mounted = profile.mounted_sources
    context = {
        "profile": profile,
        "service": name,
        "start": ["envgen", "up", name, "--profile", profile.name, *options],
        "files": [posixpath.relpath(path, folder) for path in composed],
        "folder": (profile.services[name].working_dir or profile.working_dir).path,
        "packages": [source.package for source in mounted.values()],
        # The overlay has the mounted sources.
        "python": f"{OVERLAY}/bin/python" if mounted else profile.base.python,
    }
    return render("devcontainer.json.j2", context)


LONGEST_RESOURCE = 50  # of a name: the pods of a group append their numbers


def kubernetes(profile: Profile, name: str, image: str, commit: str = "") -> str:
    """A service as a LeaderWorkerSet and a Service, with the content of its Compose files.

    ``image``: with its digest; ``commit``: the model's in the lock, or "". RefusedError for
    folders, devices and checkouts of this machine.
    """
    service = profile.services[name]
    _require_portable(profile, name)
    size = len(service.cluster.nodes) if service.cluster is not None else 1
    roles = {"leaderTemplate": "leader", "workerTemplate": "worker"}
    if size == 1:
        roles = {"workerTemplate": "leader"}
    pods = []
    for template, role in roles.items():
        args = _args(service, commit, role == "leader")
        pods.append({"template": template, "role": role, "args": args})
    env = _env(profile, name)
    ports = dict.fromkeys(port.container for port in (service.ports or service.host_ports))
    shm = service.shm_size or profile.shm_size
    context = {
        "called": resource_name(f"{profile.project}-{profile.name}-{name}"),
        "container": resource_name(name),
        "image": image,
        "size": size,
        "pods": pods,
        "env": env,
        "secrets": [variable for variable in profile.secrets if variable not in env],
        "secret": resource_name(f"{profile.project}-secrets"),
        "folder": (service.working_dir or profile.working_dir).path,
        "ports": list(ports),
        "service": service,
        **_health(service),
        "requests": {"memory": str(service.needs_memory.bytes)} if service.needs_memory else {},
        "limits": _gpus(profile, service, size),
        "security": _security(service.user or ""),
        "volumes": list(_volumes(profile, service)),
        "shm": {"medium": "Memory", **({"sizeLimit": str(shm.bytes)} if shm else {})},
    }
    return render("kubernetes.yaml.j2", context)


def resource_name(text: str) -> str:
    """A valid name for a Kubernetes object."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_RESOURCE].rstrip("-")


def _require_portable(profile: Profile, name: str) -> None:
    """RefusedError for settings that a pod cannot have."""
    service = profile.services[name]
    of_this_machine = {
        "mounted checkouts": profile.mounted_sources,
        "mounts": service.mounts,
        "gpu (leave it out: a pod asks for a number of GPUs)": service.gpu,
        "network.ca_certificates": profile.network.ca_certificates,
        "user: host (write numbers: 1000:1000)": service.user == "host",
    }
    if used := [key for key, value in of_this_machine.items() if value]:
        message = f"{name} cannot be exported, it needs of this machine: {', '.join(used)}"
        hint = "export a production profile, with its files in the image"
        raise RefusedError(message, hint=hint)


def _gpus(profile: Profile, service: Service, machines: int) -> dict[str, int]:
    """GPUs of one pod: the ranks in the flags, divided by the machines; 1 where the flags can't be
    read.
    """
    if profile.gpu is GpuMode.NONE or service.gpu is not None:
        return {}
    return {"nvidia.com/gpu": max(1, service.ranks // machines)}


def _literal(value: str) -> str:
    """A value with escaped dollars: Kubernetes would replace $(NAME)."""
    return value.replace("$", "$$")


def _args(service: Service, commit: str, leads: bool) -> list[str]:
    own = len(service.argv)
    added = server_words(service, "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)", leads=leads)[own:]
    words = [_literal(word) for word in service.argv]
    if commit and service.is_vllm and "revision" not in service.args:
        if "--revision" in words:
            words[words.index("--revision") + 1] = commit
        else:
            words += ["--revision", commit]
    return words + added


def _env(profile: Profile, name: str) -> dict[str, str]:
    service = profile.services[name]
    values = {}
    if service.model is not None:
        values[OFFLINE] = "1"
    values |= names.compose_env(profile, name)
    if service.cluster is not None:
        values["NCCL_DEBUG"] = "INFO"
        values["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
    return {variable: _literal(value) for variable, value in values.items()}


def _health(service: Service) -> JsonDict:
    """The values of the probes."""
    health = service.health
    if health is None:
        return {"health": None}
    period = max(1, health.interval.seconds)
    return {
        "health": health,
        "health_words": health_words(service, health),
        "period": period,
        "timeout": max(1, health.timeout.seconds),
        "start_failures": max(1, -(-health.start_period.seconds // period)),
        "wedged_failures": max(60, -(-900 // period)),
    }


def _security(user: str) -> dict[str, int]:
    if user == "root":
        user = "0:0"
    ids = zip(("runAsUser", "runAsGroup"), user.split(":"), strict=False)
    return {key: int(number) for key, number in ids if number}


def _volumes(profile: Profile, service: Service) -> Iterator[tuple[str, str, str]]:
    """The name of each cache, its place and its claim. Weights are a claim that is filled before;
    other caches, with "", live as long as the pod.
    """
    for name, cache in profile.caches.items():
        path = cache.path.path
        weights = name == HUGGINGFACE.name
        if service.model is None:
            weights = any(word.startswith(f"{path}/") for word in service.argv)
        claim = resource_name(f"{profile.project}-{name}") if weights else ""
        yield f"cache-{resource_name(name)}", path, claim


# --- systemd
# ----------------------------------------------------------------------------------------------------------

_UNIT = """\
# Written by `envgen export systemd` for this machine. docs/recipes.md has its installation.

[Unit]
Description={title}
Wants=docker.service network-online.target
After=docker.service network-online.target
StartLimitIntervalSec=1h
StartLimitBurst=3

[Service]
Type=notify
NotifyAccess=all
User={user}
WorkingDirectory={folder}
{environment}ExecStart={start}
ExecStop={stop}
Restart=on-failure
RestartSec=30s
SuccessExitStatus=130 143
TimeoutStartSec={patience}s
TimeoutStopSec=5min

[Install]
WantedBy=multi-user.target
"""


def systemd(
    profile: Profile,
    name: str,
    *,
    program: Sequence[str],
    folder: str,
    user: str,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> str:
    """The unit that starts service ``name`` with the machine. RefusedError for text that no unit
    can hold.

    ``environment``: the variables of this shell that select the engine or change the profile.
    ``options``: --file and --set.
    """
    chosen = [name, "--profile", profile.name, *options]
    start = [*program, "up", *chosen]
    if profile.variant:
        start += ["--variant", profile.variant]
    patience = 600  # of `up` itself, and its checks before
    ready = profile.services[name].ready
    if ready:
        patience += ready.timeout.seconds
    variables = [_quoted(f"{key}={value}") for key, value in environment.items()]
    return _UNIT.format(
        title=_plain(f"{name} of {profile.compose_name}"),
        user=_plain(user),
        folder=_plain(folder),
        start=_words([*start, "--stay"]),
        stop=_words([*program, "stop", *chosen]),
        environment="".join(f"Environment={one}\n" for one in variables),
        patience=patience,
    )


def _plain(text: str) -> str:
    """A value that systemd reads literally, except for % specifiers."""
    if not text.isprintable() or text != text.strip() or text.endswith("\\"):
        raise RefusedError(
            f"{text!r} is not possible in a systemd unit", hint="use a folder with a plain name"
        )
    return text.replace("%", "%%")


def _words(words: Sequence[str]) -> str:
    """A command line, quoted for systemd."""
    return " ".join(_quoted(one).replace("$", "$$") for one in words)


def _quoted(text: str) -> str:
    return '"' + _plain(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
