"""Reads what people start a server with as a recipe: a `docker run` or `vllm serve` line, a service
of a Compose file. Nothing is executed; $HOME and the current folder have their own spelling in a
profile, and ``${X:-y}`` is y.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from envgen.errors import Place
from envgen.profile.caches import KNOWN, SETS
from envgen.profile.checks import OWN_VARIABLES
from envgen.profile.flags import VARIABLE, in_words
from envgen.profile.names import NAMES
from envgen.profile.shape import HUB_REPO, as_profile_name, matches
from envgen.profile.tree import MAP, PROJECT, ValueText, parse
from envgen.recipes.read import Recipe, brought, flags_of, name_of, refusal, split, value_of
from envgen.redact import redact_secrets, secret_like

_OPTIONS: Mapping[str, Any] = NAMES["run_options"]
_SPELLED = {
    r"\$\(pwd\)|\$\{?PWD\}?": ".",
    r"\$\{?HOME\}?": "~",
    r"\$\{\w+:?-([^{}]*)\}": r"\1",
    r"(?m)^export (?=\w+=)": "",
}
_SKIPPED = re.compile(r"\s*(#|set -|(sudo )?(docker|podman) (pull|stop|rm|logs) |$)")
# After a prompt: variables, and what starts the server.
_BEGIN = re.compile(
    r"\s*(?:.*[$#%] )?(?P<line>(?:\w+=\S*\s+)*(?:sudo )?(?:(?P<run>(?:docker|podman) (?:container )?run)"
    r"|vllm serve|python3? -m vllm\S+)\s)"
)
_SCRIPT = re.compile(r"[;|&<>`\n]|\$\(")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
# GPUs: their numbers, or how many; all of them.
_GPUS = re.compile(
    r"(?:device|gpu|device_ids)[=:]\[?(\d[\d,]*)|(?:count:|^)(\d{1,2})\b|(?:^|[=:])all\b"
    r"|capabilities(?!.*(?:count|device_ids):)"
)
_SERVED = re.compile(r"(\S*/)?vllm serve( |$)|(\S+ )?-m vllm\.entrypoints\.openai\.api_server( |$)")
_ROWS = "docs/coming-from.md has a row for each part"


def read_command(text: str, file: str) -> Recipe | None:
    """The recipe in a command or a Compose file; None for any other text. Raises ProjectError."""
    for written, spelled in _SPELLED.items():
        text = re.sub(written, spelled, text)
    lines = text.replace("\\\n", " ").splitlines()
    begin = _BEGIN.match("\n".join(line for line in lines if not _SKIPPED.match(line)))
    if begin is None and not text.startswith("#!") and not file.endswith(".sh"):
        top, _ = parse(ValueText(file, PROJECT, text), foreign=True)
        services = top.at(("services",)) if top else None
        if services is None or services.kind != MAP:
            return None
        return _of_compose(value_of(services), services.place())
    container = _Container(Place(file, 1, 1))
    rest = begin.string[begin.end() :] if begin else ""
    if begin is None or _SCRIPT.search(_QUOTED.sub("", rest)):
        container.refuse("is a shell script; envgen reads one `docker run` or `vllm serve` line")
    if not begin["run"]:
        return container.recipe("", container.split(begin["line"] + rest))
    words = container.split(rest)
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).lstrip("-").partition("=")
        if not value and name not in _OPTIONS["bare"] and not re.fullmatch("[dit]+", name):
            value = "".join(words[:1])
            words = words[1:]
        container.option(name, value)
    if not words:
        container.refuse("names no image")
    return container.recipe(words[0], words[1:])


def _of_compose(services: Mapping[str, Any], place: Place) -> Recipe:
    """The service with vLLM in it, or the only one."""
    container = _Container(place)
    servers = [name for name, one in services.items() if "vllm" in str(one)] or list(services)
    service = services[servers[0]] if len(servers) == 1 else None
    if not isinstance(service, dict):
        container.refuse(f"has no single service with vLLM: {', '.join(servers)}")
    for other in services.keys() - servers:
        container.left.append(f"service {other}: write it in over.yaml (`compose: over.yaml`)")
    if service.pop("healthcheck", None):
        container.left.append("healthcheck: envgen asks the server itself (`ready`, `health`)")
    image = str(service.pop("image", None) or "")
    command = service.pop("command", None) or ""
    for key, value in service.items():
        for one in _texts(value):
            container.option(key, one)
    words = container.split(command) if isinstance(command, str) else list(_texts(command))
    return container.recipe(image, words)


def _texts(value: Any) -> Iterator[str]:
    """A value of Compose, one text for each option of `docker run`."""
    if isinstance(value, list):
        for one in value:
            yield _short(one) if isinstance(one, dict) else str(one)
    elif isinstance(value, dict) and "resources" not in value:
        for name, one in value.items():
            yield name if one is None else f"{name}={one}"
    else:
        yield str(value)


def _short(one: Mapping[str, str]) -> str:
    """The short form of a port or a mount."""
    keys = ("host_ip", "published", "source", "src", "target", "dst", "destination")
    words = [one[key] for key in keys if one.get(key)]
    if one.get("read_only", one.get("readonly", "false")) != "false":
        words.append("ro")
    return ":".join(words)


class _Container:
    """What a container is started with, as keys of a profile."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.left: list[str] = []
        self.entry: list[str] = []
        self.env: dict[str, str] = {}
        self.service: dict[str, Any] = {}
        self.profile: dict[str, Any] = {}

    def refuse(self, message: str) -> NoReturn:
        raise refusal(message, self.place, _ROWS)

    def split(self, text: str) -> list[str]:
        return split(text, self.place, _ROWS)

    def option(self, name: str, value: str) -> None:
        """Give one option its place in the profile, or name it."""
        if name == "mount":
            value = _short(dict(f"{part}=".split("=")[:2] for part in value.split(",")))
        name = _OPTIONS["names"].get(name, name)
        gpus = _GPUS.search(re.sub("['\" ]", "", value))
        limit = re.fullmatch(r"([a-z]+)=\D*?(-?\d+)(?:\D+?\2)?\D*", value)
        mount = re.fullmatch(r"([.~][^:]*|[\w.-]+):(/[^:]*)(:[a-zA-Z,]+)?", value)
        if name == "environment":
            self._variable(*value.partition("="))
        elif name == "volumes" and mount:
            self._mount(*mount.groups(""))
        elif name in ("gpus", "device", "devices", "deploy") and gpus:
            numbers = gpus[1].split(",") if gpus[1] else list(map(str, range(int(gpus[2] or 0))))
            self.service |= {"gpu": numbers} if numbers else {}
        elif name == "ports" and re.fullmatch(r"([\d.]+:)?\d+:\d+", value):
            self.service.setdefault("ports", []).append(value)
        elif (name, value) == ("network_mode", "host"):
            self.service |= {"network": "host", "ports": None}
        elif name == "ulimits" and limit:
            self.profile.setdefault("ulimits", {})[limit[1]] = limit[2]
        elif name == "ipc":
            self.profile["ipc"] = value
        elif name in ("shm_size", "restart", "working_dir"):
            self.service[name] = value
        elif name == "entrypoint":
            self.entry += self.split(value)
        elif name not in _OPTIONS["needless"] and not re.fullmatch("[dit]+", name):
            text = redact_secrets(f"{name} {value}").strip()
            self.left.append(f"{text}: one machine's (envgen.local.yaml), or Compose's (over.yaml)")

    def _variable(self, name: str, given: str, value: str) -> None:
        from_shell = re.fullmatch(r"\$\{?\w+(:\?[^{}]*)?\}?", value)
        if name in OWN_VARIABLES or name in SETS:
            self.left.append(f"{name}={value}: envgen sets it itself")
        elif not given or from_shell or secret_like(name):
            name = "HF_TOKEN" if name == "HUGGING_FACE_HUB_TOKEN" else name
            self.profile.setdefault("secrets", []).append(name)
            self.left.append(f"the value of {name}: export it in your shell, or write it in .env")
        else:
            self.env[name] = value

    def _mount(self, host: str, target: str, mode: str) -> None:
        known = [name for name, row in KNOWN.items() if row.path == target]
        is_volume = host[0] not in ".~"
        if is_volume or known:
            name, *_ = known or [as_profile_name(host)]
            place = {"path": target} if is_volume else {"path": target, "host": host}
            self.profile.setdefault("caches", {})[name] = place
        else:
            name = as_profile_name(target.rpartition("/")[2])
            mounts = self.service.setdefault("mounts", {})
            mounts[name] = f"{host}:{target}" + ":ro" * ("ro" in mode)

    def recipe(self, image: str, words: Sequence[str]) -> Recipe:
        """The recipe of the server that ``image`` runs with these words."""
        words = [*self.entry, *words]
        for word in (image, *words):
            if variable := VARIABLE.search(word):
                self.refuse(f"{variable[0]} depends on your machine: write its value")
        words = self._server(words)
        if words and not words[0].startswith("-"):
            words = ["--model", *words]
        args = flags_of(words, self.place, again=True)
        for name in ("host", "port"):
            if given := in_words(words, name):
                args[name] = given
        repo = str(args.pop("model", ""))
        if not matches(HUB_REPO, repo) and not repo.startswith("/"):
            self.refuse("names no model that envgen can read")
        if args.pop("api-key", None):
            hint = "write `secrets: [VLLM_API_KEY]`, and export it in your shell"
            self.left.append(f"api-key: {hint}")
        port = args.get("port", "8000")
        self.service.setdefault("ports", [f"127.0.0.1:{port}:{port}"])
        if "gpu" not in self.service and "CUDA_VISIBLE_DEVICES" in self.env:
            self.service["gpu"] = self.env.pop("CUDA_VISIBLE_DEVICES").split(",")
        mounts = str(self.service.get("mounts"))
        left = [*self.left, *(one for one in brought(args) if one.split()[3] not in mounts)]
        return Recipe(
            name_of(repo),
            repo,
            args=args,
            env=self.env,
            image=image,
            left=tuple(dict.fromkeys(left)),
            service=self.service,
            profile=self.profile,
        )

    def _server(self, words: list[str]) -> list[str]:
        """The words after `vllm serve`, however it is started."""
        while words and re.match(r"\w+=", words[0]):
            self.option("environment", words.pop(0))
        program = words[0].rpartition("/")[2] if words else ""
        if program in ("sh", "bash") and len(words) > 1:
            before, _, last = words[-1].rpartition("&&")
            if before:
                self.left.append(f"`{before.strip()}` before the server: `pip: {{tools: [...]}}`")
            return self._server(self.split(last.strip().removeprefix("exec ")))
        line = " ".join(words)
        served = _SERVED.match(line)
        if served is not None:
            return words[len(served[0].split()) :]
        begins = re.match(r"$|-|/\S+( -|$)", line)
        if not begins and not matches(HUB_REPO, words[0]):
            self.refuse("the command is not `vllm serve MODEL ...`")
        return words
