"""What differs, once it runs, between a profile and a Compose file: both as Compose itself resolves them.

Compose reads the file, its `.env` and its `env_file`s; no engine is asked, and nothing is started.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine.compose import Compose
from envgen.engine.endpoint import DEFAULT_SOCKET, Endpoint
from envgen.errors import ProcessError, UsageError
from envgen.move_in.compose import (
    asked,
    name_like,
    of_image,
    read_foreign,
    seconds,
    split_command,
)
from envgen.move_in.draft import Draft
from envgen.move_in.recipe import as_compose, is_recipe
from envgen.profile.model import GpuMode, Profile
from envgen.profile.tree import LIST, MAP, NULL, Node
from envgen.profile.values import own_path
from envgen.redact import redact_secrets, secret_in, secret_like
from envgen.render import environment as names
from envgen.render.compose import OFFLINE, PROXY, overlay_file
from envgen.render.locking import lock_of
from envgen.render.outputs import render_profile, write
from envgen.text import visible

_HIDDEN = "(not shown)"
_BASE = "image (of the profile: its base)"
# Compared on their own, or no part of what runs.
_APART = frozenset(
    ("build", "image", "command", "entrypoint", "environment", "ports", "volumes", "deploy", "gpus", "runtime",
     "ulimits", "healthcheck", "labels", "networks", "profiles", "secrets", "pull_policy", "env_file", "expose",
     "init", "devices")
)  # fmt: skip
_DEFAULTS = {"restart": "no", "ipc": "private", "privileged": "false"}
_NO_ENGINE = Endpoint(DEFAULT_SOCKET)  # never asked: `config` only reads


@dataclass(frozen=True)
class Difference:
    """One key of one service. ``theirs``, ``ours``: as text; empty where it is not there."""

    service: str
    key: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return visible(f"{self.key}: {self.theirs or '(none)'} -> {self.ours or '(none)'}")


def compare(profile: Profile, root: Path, file: Path) -> list[Difference]:
    """Services go together by name."""
    theirs, ours = _theirs(file), _ours(profile, root)
    known = {name_like(name): name for name in theirs["services"]}
    found = []
    for own, other in known.items():
        if own not in profile.services:
            found.append(Difference(other, "service", "there", ""))
            continue
        one = _facts(theirs, other, "")
        # The image has some of the derived variables, not the Compose file.
        derived = {f"environment {name}": value for name, value in names.derived_env(profile).items()}
        two = derived | _facts(ours, own, str(profile.base.image))
        two = {key: value for key, value in two.items() if key in one or key not in _added(profile, own)}
        for key in sorted({*one, *two}):
            before, after = one.get(key, ""), two.get(key, "")
            if before != after:
                found.append(Difference(own, key, _shown(key, before), _shown(key, after)))
    return found + [Difference(own, "service", "", "there") for own in profile.services if own not in known]


def _shown(key: str, value: str) -> str:
    name = key.rpartition(" ")[2].lstrip("-").replace("-", "_")
    return _HIDDEN if value and (secret_like(name) or secret_in(value)) else value


def _added(profile: Profile, service: str) -> set[str]:
    """What envgen gives every container without being asked."""
    variables = {*names.derived_env(profile), *names.user_env(profile, service), *PROXY, "MAX_JOBS", OFFLINE}
    mounted = (names.CA_FILE, names.OVERLAY)
    return {
        _BASE, "stop_grace_period", "working_dir",
        *(f"environment {name}" for name in variables), *(f"volume {target}" for target in mounted),
    }  # fmt: skip


def _theirs(file: Path) -> dict[str, Any]:
    top, folder = read_foreign(file, file.name), file.resolve().parent
    if not is_recipe(top):
        return _config(Compose(_NO_ENGINE, [file], folder, {"COMPOSE_DISABLE_ENV_FILE": "0"}), file.name)
    with files.Scratch("engine") as scratch:
        made = Path(scratch) / "compose.json"
        made.write_text(json.dumps(_plain(as_compose(top, Draft("recipe", "main")))), encoding="utf-8")
        return _config(Compose(_NO_ENGINE, [made], folder), file.name)


def _plain(node: Node) -> Any:
    if node.kind == MAP:
        return {name: _plain(one) for name, one in node.items.items()}
    if node.kind == LIST:
        return [_plain(one) for one in node.elements]
    return None if node.kind == NULL else node.text


def _ours(profile: Profile, root: Path) -> dict[str, Any]:
    rendered = render_profile(profile, lock_of(profile, root), root=root).files
    with files.Scratch("engine") as folder:
        write(Path(folder), rendered)
        used = [Path(folder) / profile.compose_file]
        if profile.gpu.asks_engine:  # as where the engine has the NVIDIA runtime
            used.append(Path(folder) / overlay_file(profile, GpuMode.ALL))
        if profile.compose is not None:
            used.append(root / own_path(profile.compose.path))
        user = {names.UID_VARIABLE: str(os.getuid()), names.GID_VARIABLE: str(os.getgid())}
        environment = names.compose_environment(profile, root) | user
        return _config(Compose(_NO_ENGINE, used, root.resolve() / "compose", environment), "the profile")


def _config(compose: Compose, name: str) -> dict[str, Any]:
    try:
        done = compose.run("--profile", "*", "config", "--format", "json", timeout=60)
    except ProcessError as error:
        # A broken line of .env is quoted behind `near`: it may be a secret.
        lines = [line.partition(" near ")[0] for line in error.stderr.splitlines() if "level=warning" not in line]
        hint = "`docker compose config` must accept it: set the variables and make the files that it asks for"
        why = redact_secrets(" ".join(lines)[-400:])
        raise UsageError(f"Compose does not accept {name}: {why}", hint=hint) from None
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "services": found.get("services") or {}, "volumes": found.get("volumes") or {}}


def _facts(document: Mapping[str, Any], name: str, base: str) -> dict[str, str]:
    """One service, each thing that can differ by a key of its own. ``base``: the image that ours is made from."""
    service = document["services"][name]
    image = str(service.get("image") or "")
    found = {
        key: _text(value) for key, value in service.items() if key not in _APART and value not in (None, {}, [], False)
    }
    found = {key: value for key, value in found.items() if _DEFAULTS.get(key) != value}
    if base or "build" not in service:
        found[_BASE] = base or image
    words = [*(service.get("entrypoint") or ()), *(service.get("command") or ())]
    program, flags = split_command(words if base or service.get("entrypoint") else of_image(image, words))
    found["command"] = shlex.join(program)
    for flag, value in flags.items():
        found[f"command --{flag}"] = shlex.join(value) if isinstance(value, list) else str(value)
    for variable, value in (service.get("environment") or {}).items():
        unknown = not value or secret_like(variable)
        found[f"environment {variable}"] = "(empty, or from the shell)" if unknown else str(value)
    for port in service.get("ports") or ():
        key = f"port {port['target']}/{port.get('protocol', 'tcp')}"
        found[key] = f"{found.get(key, '')} {port.get('host_ip', '')}:{port.get('published', 'any')}".strip()
    for volume in service.get("volumes") or ():
        source = str(volume.get("source", ""))
        named = document["volumes"].get(source) or {} if volume["type"] == "volume" else None
        source = os.path.realpath(source) if named is None else str(named.get("name", source))
        read_only = " ro" if volume.get("read_only") else ""
        found[f"volume {volume['target']}"] = f"{volume['type']} {source}{read_only}".strip()
    for limit, value in (service.get("ulimits") or {}).items():
        soft, hard = (value["soft"], value["hard"]) if isinstance(value, dict) else (value, value)
        found[f"ulimit {limit}"] = f"{soft}:{hard}"
    for label, value in (service.get("labels") or {}).items():
        found[f"label {label}"] = str(value)
    for device in service.get("devices") or ():
        source, target = (device["source"], device["target"]) if isinstance(device, dict) else (device, device)
        found[f"device {target}"] = str(source)
    others = [one for one in service.get("networks") or {} if one != "default"]
    found |= {"networks": " ".join(others)} if others else {}
    limits = ((service.get("deploy") or {}).get("resources") or {}).get("limits")
    found |= {"deploy limits": _text(limits)} if limits else {}
    return {**found, **_health(service.get("healthcheck")), **_gpus(service)}


def _gpus(service: Mapping[str, Any]) -> dict[str, str]:
    reserved = ((service.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
    asked_for = [one for one in reserved.get("devices") or () if "gpu" in (one.get("capabilities") or ())]
    for one in (*asked_for, *(service.get("gpus") or ())):
        ids = [str(device).removeprefix("nvidia.com/gpu=") for device in one.get("device_ids") or ()]
        count = one.get("count", -1)
        return {"gpu": " ".join(ids) if ids else "all" if count in (-1, "all") else f"any {count}"}
    return {"gpu": "all"} if service.get("runtime") == "nvidia" else {}


def _health(health: Mapping[str, Any] | None) -> dict[str, str]:
    if not health or health.get("disable"):
        return {}
    test = [str(word) for word in health.get("test") or ()]
    if test[1:2] == [f"{names.HOME}/bin/envgen-health"]:
        text = f"http {test[3]} port {test[2]}"
    elif test[1:2] == [names.WITH_START_UP]:
        text = shlex.join(test[2:])
    else:
        words = ["sh", "-c", *test[1:2]] if test[:1] == ["CMD-SHELL"] else test[1:]
        where = asked(" ".join(test[1:]))
        text = f"http {where[0]} port {where[1]}" if where else shlex.join(words)
    found = {"health": text}
    for key in ("interval", "timeout", "start_period", "retries"):
        if value := health.get(key):
            found[f"health {key}"] = str(value) if key == "retries" else seconds(str(value))
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(sorted(map(_text, value)))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
