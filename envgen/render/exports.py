"""Files for other tools: devcontainer.json, Kubernetes, systemd. Pure like all rendering."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from envgen.errors import Problem, RefusedError
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import GpuMode, Profile
from envgen.profile.service import Health, Service
from envgen.profile.values import own_path
from envgen.render import environment as names
from envgen.render.compose import OFFLINE, health_words, server_words
from envgen.render.environment import OVERLAY
from envgen.render.quote import Quoting

Doc = dict[str, Any]


def as_json(document: Doc) -> str:
    """The text of a JSON file."""
    return json.dumps(document, indent=2) + "\n"


DEVCONTAINER_HEAD = (
    "// Written by `envgen export devcontainer`. docs/recipes.md has what an editor does with it.\n"
)
EXTENSIONS = ("ms-python.python",)
_FOUND = "import importlib.util as u; [print(name, u.find_spec(name).origin) for name in {names}]"


def devcontainer(profile: Profile, name: str, folder: str, options: Sequence[str] = ()) -> Doc:
    """The settings for service ``name``. ``folder``: of the file, relative to the project.
    ``options``: for `up`.
    """
    service = profile.services[name]
    composed = [f"compose/{profile.name}.yaml"]
    if profile.compose is not None:
        composed.append(own_path(profile.compose.path))
    # The overlay has the mounted sources.
    python = f"{OVERLAY}/bin/python" if profile.mounted_sources else profile.base.python
    packages = [source.package for source in profile.mounted_sources.values()]
    created = (
        {"postCreateCommand": [python, "-c", _FOUND.format(names=packages)]} if packages else {}
    )
    return {
        "name": f"{profile.project} {profile.name}",
        # It has this machine's checkouts, user, ports and GPUs; the editor attaches to its
        # container.
        "initializeCommand": ["envgen", "up", name, "--profile", profile.name, *options],
        "dockerComposeFile": [posixpath.relpath(path, folder) for path in composed],
        "service": name,
        "runServices": [name],
        "overrideCommand": False,
        "shutdownAction": "none",
        "updateRemoteUserUID": False,
        "workspaceFolder": (service.working_dir or profile.working_dir).path,
        **created,
        "customizations": {
            "vscode": {
                "extensions": list(EXTENSIONS),
                "settings": {"python.defaultInterpreterPath": python},
            }
        },
    }


ROLE = "dev.envgen/role"
API = "dev.envgen/service"
LONGEST_RESOURCE = 50  # of a name: the pods of a group append their numbers
TERMINATION = 30


def kubernetes(profile: Profile, name: str, image: str, commit: str = "") -> list[Doc]:
    """A service as a LeaderWorkerSet and a Service, with the content of its Compose files.

    ``image``: with its digest; ``commit``: the model's in the lock, or "". RefusedError for
    folders, devices and checkouts of this machine.
    """
    service = profile.services[name]
    if unmapped := list(_unmapped(profile, name, service)):
        raise RefusedError(problems=(Problem(f"{name} cannot be exported"), *unmapped))
    called = resource_name(f"{profile.project}-{profile.name}-{name}")
    size = len(service.cluster.nodes) if service.cluster is not None else 1
    labels = {"app.kubernetes.io/name": called, "app.kubernetes.io/managed-by": "envgen"}

    def template(role: str) -> Doc:
        pod = _pod(profile, name, image, commit, role == "leader")
        return {"metadata": {"labels": {**labels, API: called, ROLE: role}}, "spec": pod}

    group = {
        "size": size,
        # vLLM's ranks do not notice that another has ended: restart all together.
        "restartPolicy": "RecreateGroupOnPodRestart",
        **({"leaderTemplate": template("leader")} if size > 1 else {}),
        "workerTemplate": template("worker" if size > 1 else "leader"),
    }
    objects: list[Doc] = [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": called, "labels": labels},
            "spec": {"replicas": 1, "leaderWorkerTemplate": group},
        }
    ]
    if ports := [
        {"name": f"port-{port}", "port": port, "targetPort": port} for port in _ports(service)
    ]:
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                # The group has a headless Service of its own name already.
                "metadata": {"name": f"{called}-api", "labels": labels},
                "spec": {"selector": {API: called, ROLE: "leader"}, "ports": ports},
            }
        )
    return objects


def kubernetes_text(objects: list[Doc]) -> str:
    """The objects as YAML, the same for YAML 1.1 and 1.2."""
    head = "# Written by `envgen export kubernetes`. docs/recipes.md has what must be in the cluster first.\n"
    return head + yaml.dump_all(
        objects, Dumper=Quoting, sort_keys=False, allow_unicode=False, width=120
    )


def resource_name(text: str) -> str:
    """A valid name for a Kubernetes object."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_RESOURCE].rstrip("-")


def _unmapped(profile: Profile, name: str, service: Service) -> Iterator[Problem]:
    """Settings that a pod cannot have."""
    for source, described in profile.mounted_sources.items():
        if described.origin.checkout is not None:
            yield Problem(
                f"{source} is a mounted checkout of this machine",
                hint="export a production profile",
            )
    for mount in service.mounts:
        yield Problem(
            f"the mount {mount} is a file or folder of this machine", hint="build it into the image"
        )
    if service.gpu:
        yield Problem(
            "`gpu` names GPUs of this machine", hint="leave it out: a pod asks for a number of GPUs"
        )
    if profile.network.ca_certificates is not None:
        yield Problem(
            "network.ca_certificates is a file of this machine", hint="build it into the image"
        )
    user = service.user or ""
    if user not in ("", "root") and not re.fullmatch(r"[0-9]+(:[0-9]+)?", user):
        yield Problem(
            f"the user {user!r} is not a number", hint="write services.NAME.user: 1000:1000"
        )


def _pod(profile: Profile, name: str, image: str, commit: str, leads: bool) -> Doc:
    service = profile.services[name]
    volumes, mounts = _volumes(profile, service)
    ports = (
        [{"name": f"port-{port}", "containerPort": port} for port in _ports(service)]
        if leads
        else []
    )
    memory = service.needs_memory
    gpus = _gpus(service) if profile.gpu is not GpuMode.NONE and service.gpu is None else 0
    security = _security(profile, name, service)
    container: Doc = {
        "name": resource_name(name),
        "image": image,
        "args": _args(service, commit, leads),
        "env": list(_env(profile, name)),
        "workingDir": (service.working_dir or profile.working_dir).path,
        **({"ports": ports} if ports else {}),
        **(_probes(service, service.health) if leads and service.health is not None else {}),
        "resources": {
            **({"requests": {"memory": str(memory.bytes)}} if memory is not None else {}),
            **({"limits": {"nvidia.com/gpu": gpus}} if gpus else {}),
        },
        **({"securityContext": security} if security else {}),
        "volumeMounts": mounts,
    }
    return {
        "terminationGracePeriodSeconds": TERMINATION,
        "containers": [container],
        "volumes": volumes,
    }


def _gpus(service: Service) -> int:
    """GPUs of one pod: the ranks in the flags, divided by the machines; 1 where the flags can't be
    read.
    """
    machines = len(service.cluster.nodes) if service.cluster is not None else 1
    return max(1, service.ranks // machines)


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


def _env(profile: Profile, name: str) -> Iterator[Doc]:
    service = profile.services[name]
    values = {
        **({OFFLINE: "1"} if service.model is not None else {}),
        **names.compose_env(profile, name),
    }
    if service.cluster is not None:
        values |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
        yield {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    for variable in profile.secrets:
        if variable not in values:
            # The Secret that must hold the profile's `secrets`, each under its own name.
            secret = resource_name(f"{profile.project}-secrets")
            reference = {"name": secret, "key": variable, "optional": True}
            yield {"name": variable, "valueFrom": {"secretKeyRef": reference}}
    for variable, value in values.items():
        yield {"name": variable, "value": _literal(value)}


def _ports(service: Service) -> list[int]:
    return list(dict.fromkeys(port.container for port in (service.ports or service.host_ports)))


def _probes(service: Service, health: Health) -> Doc:
    period, timeout = (max(1, round(one.seconds)) for one in (health.interval, health.timeout))
    action = {"httpGet": {"path": health.http, "port": service.http_port}}
    common = {**action, "periodSeconds": period, "timeoutSeconds": timeout}
    starting = max(1, -(-round(health.start_period.seconds) // period))
    return {
        "startupProbe": {**common, "failureThreshold": starting},
        "readinessProbe": {**common, "failureThreshold": health.retries},
        # It ends a wedged server by itself; Kubernetes waits longer than that takes.
        "livenessProbe": {
            "exec": {"command": health_words(service, health)},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": max(60, -(-900 // period)),
        },
    }


def _security(profile: Profile, name: str, service: Service) -> Doc:
    user, _, group = (service.user or "").partition(":")
    if user == "root":
        user = group = "0"
    return {
        key: int(text)
        for key, text in (("runAsUser", user), ("runAsGroup", group))
        if text.isdecimal()
    }


def _volumes(profile: Profile, service: Service) -> tuple[list[Doc], list[Doc]]:
    """Weights are a claim that is filled before; other caches live as long as the pod."""
    volumes: list[Doc] = []
    mounts = []
    for name, cache in profile.caches.items():
        path = cache.path.path
        weights = name == HUGGINGFACE.name
        if service.model is None:
            weights = any(word.startswith(f"{path}/") for word in service.argv)
        volume: Doc = {"name": f"cache-{resource_name(name)}"}
        if weights:
            claim = resource_name(f"{profile.project}-{name}")
            volume["persistentVolumeClaim"] = {"claimName": claim}
        else:
            volume["emptyDir"] = {}
        volumes.append(volume)
        mounts.append({"name": volume["name"], "mountPath": path})
    memory: Doc = {"medium": "Memory"}
    shm = service.shm_size or profile.shm_size
    if shm is not None:
        memory["sizeLimit"] = str(shm.bytes)
    volumes.append({"name": "shm", "emptyDir": memory})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


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
    varied = ["--variant", profile.variant] if profile.variant else []
    ready = profile.services[name].ready
    return _UNIT.format(
        title=_plain(f"{name} of {profile.compose_name}"),
        user=_plain(user),
        folder=_plain(folder),
        start=_words([*program, "up", *chosen, *varied, "--stay"]),
        stop=_words([*program, "stop", *chosen]),
        environment="".join(
            f"Environment={_quoted(f'{key}={value}')}\n" for key, value in environment.items()
        ),
        patience=(ready.timeout.seconds if ready else 0)
        + 600,  # of `up` itself, and its checks before
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
