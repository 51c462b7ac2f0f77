"""Reads what people start a server with as a recipe: a `docker run` or `vllm serve` line, a service
of a Compose file. Nothing is executed. command.yaml has the patterns, and the places of options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from envgen.errors import Place
from envgen.profile.caches import KNOWN, SETS
from envgen.profile.checks import OWN_VARIABLES
from envgen.profile.flags import VARIABLE
from envgen.profile.shape import HUB_REPO, as_profile_name, matches
from envgen.profile.tree import MAP, PROJECT, ValueText, parse
from envgen.recipes.read import Recipe, brought, flags_of, name_of, refusal, split, value_of
from envgen.redact import redact_secrets, secret_like

_TABLE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())


def read_command(text: str, file: str) -> Recipe | None:
    """The recipe in a command or a Compose file; None for any other text. Raises ProjectError."""
    for written, spelled in _TABLE["spelled"].items():
        text = re.sub(written, spelled, text)
    command = re.sub(_TABLE["skipped"], "", text).strip()
    begin = re.match(_TABLE["begin"], command)
    if begin is None and not text.startswith("#!") and not file.endswith(".sh"):
        return _of_compose(text, file)
    container = _Container(Place(file, 1, 1))
    words = container.split(command[begin.start("line") :] if begin else command)
    if begin is None or not begin["run"]:
        return container.recipe("", words)
    words = words[words.index("run") + 1 :]
    while words and (option := re.fullmatch(_TABLE["option"], words[0], re.DOTALL)):
        name, value = option.groups()
        is_whole = value or re.fullmatch(_TABLE["bare"], name)
        container.option(name, value if is_whole else "".join(words[1:2]))
        words = words[1 if is_whole else 2 :]
    return container.recipe("".join(words[:1]), words[1:])


def _of_compose(text: str, file: str) -> Recipe | None:
    """The recipe of the service with vLLM in it, or of the only one; None without services."""
    top, _ = parse(ValueText(file, PROJECT, text), foreign=True)
    node = top.at(("services",)) if top else None
    if node is None or node.kind != MAP:
        return None
    container = _Container(node.place())
    services = {name: one for name, one in value_of(node).items() if isinstance(one, dict)}
    programs = {
        name: str([one.get(key) for key in _TABLE["program"]]) for name, one in services.items()
    }
    servers = [name for name, program in programs.items() if "vllm" in program] or list(services)
    if len(servers) != 1:
        container.refuse(f"has no single service with vLLM; leave one of: {', '.join(servers)}")
    service = services[servers[0]]
    for other in sorted(services.keys() - servers):
        container.option("service", other)
    image = str(service.pop("image", None) or "")
    words = list[str]()
    for key in ("entrypoint", "command"):
        given = service.pop(key, None) or []
        if isinstance(given, str):
            given = container.split(given.replace("\n", " "))
        words += _texts(given)
    for key, value in service.items():
        for one in _texts(value):
            container.option(key, one)
    return container.recipe(image, words)


def _texts(value: Any) -> list[str]:
    """A value of Compose, one text for each option of `docker run`."""
    if isinstance(value, dict):
        value = [name if one is None else f"{name}={one}" for name, one in value.items()]
    values = value if isinstance(value, list) else [value]
    return [",".join(_texts(one)) if isinstance(one, dict) else str(one) for one in values]


def _put(keys: dict[str, Any], place: Mapping[str, Any], found: re.Match[str]) -> None:
    """Add the keys of a row of the table, filled in with what its pattern has found."""
    for template, value in place.items():
        key = found.expand(template)
        if isinstance(value, dict):
            _put(keys.setdefault(key, {}), value, found)
        elif isinstance(value, list):
            keys.setdefault(key, []).append(found.expand(value[0]))
        else:
            keys[key] = found.expand(value) if value else None


@dataclass
class _Container:
    """What a container is started with, as keys of a profile."""

    place: Place
    left: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    service: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)

    def refuse(self, message: str) -> NoReturn:
        raise refusal(message, self.place, _TABLE["hint"])

    def split(self, text: str) -> list[str]:
        """The words of one command."""
        if re.search(_TABLE["script"], re.sub(_TABLE["quoted"], "", text)):
            self.refuse("is a shell script; envgen reads one `docker run` or `vllm serve` line")
        return split(text, self.place, _TABLE["hint"])

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
            found = (re.fullmatch(row, text, re.DOTALL) for row in _TABLE["places"])
            row = next(filter(None, found))
            _put(vars(self), _TABLE["places"][row.re.pattern], row)

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
            name = as_profile_name(target.rpartition("/")[2])
            mount = f"{host}:{target}" + ":ro" * bool(re.search("ro|only", mode))
            self.service.setdefault("mounts", {})[name] = mount
        else:
            name = known[0] if known else as_profile_name(host)
            place = {"path": target} | ({"host": host} if is_folder else {})
            self.profile.setdefault("caches", {})[name] = place

    def recipe(self, image: str, words: Sequence[str]) -> Recipe:
        """The recipe of the server that ``image`` runs with these words."""
        words = self._server([*self.entry, *words])
        for word in (image, *words):
            if variable := VARIABLE.search(word):
                self.refuse(f"{variable[0]} depends on your machine: write its value")
        args = flags_of(["--model", *words], self.place, again=True, ours=())
        repo = str(args.pop("model", ""))
        if not matches(HUB_REPO, repo) and not repo.startswith("/"):
            self.refuse("names no model: the command is not `vllm serve MODEL ...`")
        self.option("api-key", str(args.pop("api-key", "")))
        self.option("model" if image else "own-model", repo)
        port = args.get("port", "8000")
        self.service.setdefault("ports", [f"127.0.0.1:{port}:{port}"])
        if gpus := self.service.get("gpu") or self.env.pop("CUDA_VISIBLE_DEVICES", ""):
            self.service["gpu"] = re.findall(r"[\w-]+", gpus)
        mounts = tuple(one.split(":")[1] for one in self.service.get("mounts", {}).values())
        brings = [one for one in brought(args) if not one.split()[3].startswith(mounts)]
        left = tuple(dict.fromkeys([*self.left, *brings]))
        kept: dict[str, Any] = {"image": image, "service": self.service, "profile": self.profile}
        return Recipe(name_of(repo), repo, args=args, env=self.env, left=left, **kept)

    def _server(self, words: list[str]) -> list[str]:
        """The words after `vllm serve`, however it is started."""
        if words and re.fullmatch(r"(\S*/)?(ba)?sh", words[0]):
            before, _, server = words[-1].rpartition("&&")
            self.option("before", before.strip())
            words = self.split(server.strip().removeprefix("exec "))
        while words and re.match(r"\w+=", words[0]):
            self.option("environment", words.pop(0))
        return self.split(re.sub(_TABLE["server"], "", shlex.join(words)))
