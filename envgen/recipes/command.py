"""Reads what people start a server with as a recipe: a `docker run` or `vllm serve` line, a service
of a Compose file. Nothing is executed. command.yaml has the patterns, and the places of options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from envgen.binding import JsonDict, JsonObject
from envgen.errors import Place
from envgen.profile.caches import KNOWN, SETS
from envgen.profile.checks import OWN_VARIABLES
from envgen.profile.flags import VARIABLE
from envgen.profile.shape import HUB_REPO, as_profile_name, matches
from envgen.profile.tree import MAP, PROJECT, ValueText, parse
from envgen.recipes.read import Recipe, brought, flags_of, name_of, refusal, split, value_of
from envgen.redact import redact_secrets, secret_like

_TABLE: JsonObject = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())


def read_command(text: str, file: str) -> Recipe | None:
    """The recipe in a command or a Compose file; None for any other text. Raises ProjectError."""
    for written, spelled in _TABLE["spelled"].items():
        text = re.sub(written, spelled, text)
    command = re.sub(_TABLE["skipped"], "", text).strip()
    begin = re.match(_TABLE["begin"], command)
    is_script = text.startswith("#!") or file.endswith(".sh")
    if begin is None and not is_script:
        return _of_compose(text, file)
    container = _Container(Place(file, 1, 1))
    if begin is not None:
        command = command[begin.start("line") :]
    words = container.split(command)
    if begin is None or not begin["run"]:
        return container.recipe("", words)
    image, *server = container.run_options(words[words.index("run") + 1 :]) or [""]
    return container.recipe(image, server)


def _of_compose(text: str, file: str) -> Recipe | None:
    """The recipe of the service with vLLM in it, or of the only one; None without services."""
    top, _ = parse(ValueText(file, PROJECT, text), foreign=True)
    node = top.at(("services",)) if top else None
    if node is None or node.kind != MAP:
        return None
    container = _Container(node.place())
    services = {name: one for name, one in value_of(node).items() if isinstance(one, dict)}
    servers = [name for name, one in services.items() if _names_vllm(one)]
    if not servers:
        servers = list(services)
    if len(servers) != 1:
        container.refuse(f"has no single service with vLLM; leave one of: {', '.join(servers)}")
    service = services[servers[0]]
    for other in sorted(services.keys() - servers):
        container.option("service", other)
    image = str(service.pop("image", None) or "")
    words = []
    for key in ("entrypoint", "command"):
        given = service.pop(key, None) or []
        if isinstance(given, str):
            given = container.split(given.replace("\n", " "))
        words += _texts(given)
    for key, value in service.items():
        for one in _texts(value):
            container.option(key, one)
    return container.recipe(image, words)


def _names_vllm(service: JsonObject) -> bool:
    """Whether a service of Compose has vLLM in its image or its command."""
    program = [service.get(key) for key in _TABLE["program"]]
    return "vllm" in str(program)


def _texts(value: Any) -> list[str]:
    """A value of Compose, one text for each option of `docker run`."""
    if isinstance(value, dict):
        return [name if one is None else f"{name}={one}" for name, one in value.items()]
    if not isinstance(value, list):
        return [str(value)]
    texts = []
    for one in value:
        text = str(one)
        if isinstance(one, dict):
            text = ",".join(_texts(one))
        texts.append(text)
    return texts


def _put(keys: JsonDict, place: JsonObject, found: re.Match[str]) -> None:
    """Add the keys of a row of the table, filled in with what its pattern has found."""
    for template, value in place.items():
        key = found.expand(template)
        if isinstance(value, dict):
            inner = keys.setdefault(key, {})
            _put(inner, value, found)
        elif isinstance(value, list):
            [item] = value
            items = keys.setdefault(key, [])
            items.append(found.expand(item))
        else:
            keys[key] = value and found.expand(value)


@dataclass
class _Container:
    """What a container is started with, as keys of a profile."""

    place: Place
    left: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    service: JsonDict = field(default_factory=dict)
    profile: JsonDict = field(default_factory=dict)

    def refuse(self, message: str) -> NoReturn:
        raise refusal(message, self.place, _TABLE["hint"])

    def split(self, text: str) -> list[str]:
        """The words of one command."""
        if re.search(_TABLE["script"], re.sub(_TABLE["quoted"], "", text)):
            self.refuse("is a shell script; envgen reads one `docker run` or `vllm serve` line")
        return split(text, self.place, _TABLE["hint"])

    def run_options(self, words: list[str]) -> list[str]:
        """Place the options of `docker run` at the beginning of ``words``; returns the rest."""
        while words:
            option = re.fullmatch(_TABLE["option"], words[0], re.DOTALL)
            if option is None:
                break
            name, value = option.groups()
            words = words[1:]
            if not value and not re.fullmatch(_TABLE["bare"], name):
                value = "".join(words[:1])
                words = words[1:]
            self.option(name, value)
        return words

    def option(self, name: str, value: str) -> None:
        """Give one option its place in the profile, or name it."""
        name = _TABLE["names"].get(name, name)
        for long, short in _TABLE["short"].items():
            value = re.sub(long, short, value)
        mount = re.fullmatch(_TABLE["mount"], f"{name} {value}")
        if name == "environment":
            self._variable(*value.partition("="))
        elif mount:
            self._mount(*mount.groups(""))
        else:
            text = redact_secrets(f"{name} {value}").rstrip(": ")
            for pattern, place in _TABLE["places"].items():
                found = re.fullmatch(pattern, text, re.DOTALL)
                if found:
                    _put(vars(self), place, found)
                    break

    def _variable(self, name: str, given: str, value: str) -> None:
        if name in OWN_VARIABLES or name in SETS:
            self.left.append(f"{name}={value}: envgen sets it itself")
        elif not given or VARIABLE.fullmatch(value) or secret_like(name):
            self.option("from-shell", name)
        else:
            self.env[name] = value

    def _mount(self, host: str, target: str, mode: str) -> None:
        is_folder = host[0] in ".~"
        known = [name for name, row in KNOWN.items() if row.path == target]
        if is_folder and not known:
            mount = f"{host}:{target}"
            if re.search("ro|only", mode):
                mount += ":ro"
            name = as_profile_name(target.rpartition("/")[2])
            mounts = self.service.setdefault("mounts", {})
            mounts[name] = mount
        else:
            place = {"path": target}
            if is_folder:
                place["host"] = host
            name = known[0] if known else as_profile_name(host)
            caches = self.profile.setdefault("caches", {})
            caches[name] = place

    def recipe(self, image: str, words: Sequence[str]) -> Recipe:
        """The recipe of the server that ``image`` runs with these words."""
        words = self._server([*self.entry, *words])
        for word in (image, *words):
            variable = VARIABLE.search(word)
            if variable:
                self.refuse(f"{variable[0]} depends on your machine: write its value")
        args = flags_of(["--model", *words], self.place, again=True, ours=())
        repo = str(args.pop("model", ""))
        if not matches(HUB_REPO, repo) and not repo.startswith("/"):
            self.refuse("names no model: the command is not `vllm serve MODEL ...`")
        api_key = args.pop("api-key", "")
        self.option("api-key", str(api_key))
        self.option("model" if image else "own-model", repo)
        port = args.get("port", "8000")
        self.service.setdefault("ports", [f"127.0.0.1:{port}:{port}"])
        gpus = self.service.get("gpu")
        if not gpus:
            gpus = self.env.pop("CUDA_VISIBLE_DEVICES", "")
        if gpus:
            self.service["gpu"] = re.findall(r"[\w-]+", gpus)
        self.left += brought(args, self._mounted())
        return Recipe(
            name_of(repo),
            repo,
            args=args,
            env=self.env,
            image=image,
            left=tuple(dict.fromkeys(self.left)),
            service=self.service,
            profile=self.profile,
        )

    def _mounted(self) -> tuple[str, ...]:
        """The folders of the container that are mounted."""
        mounts = self.service.get("mounts", {}).values()
        return tuple(mount.split(":")[1] for mount in mounts)

    def _server(self, words: list[str]) -> list[str]:
        """The words after `vllm serve`, however it is started."""
        if words and re.fullmatch(r"(\S*/)?(ba)?sh", words[0]):
            script = words[-1]
            before, _, server = script.rpartition("&&")
            self.option("before", before.strip())
            server = server.strip().removeprefix("exec ")
            words = self.split(server)
        while words and re.match(r"\w+=", words[0]):
            variable = words.pop(0)
            self.option("environment", variable)
        line = shlex.join(words)
        arguments = re.sub(_TABLE["server"], "", line)
        return self.split(arguments)
