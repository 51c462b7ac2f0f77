"""A Compose file as a profile; recipe.py makes one of a recipe.

It is a stranger's: nothing is run, no variable of this machine and no `.env` is read, and of other files only a
Dockerfile in its own folder. Values are taken as they are: what the loader refuses is taken out again, and listed
(app/move_in.py).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envgen.errors import ProjectError
from envgen.move_in import dockerfile
from envgen.move_in.draft import Draft, fill, place, refused, secret
from envgen.profile import shape as p
from envgen.profile.bind import COMPOSE
from envgen.profile.shape import FLAG, matches
from envgen.profile.tree import LIST, MAP, NULL, PROJECT, Node, Source, parse, text_of
from envgen.redact import is_secret_value, secret_in, secret_like

# Short flags of vLLM with more than one letter: a profile's `args` would give them two dashes.
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
API_KEY = "VLLM_API_KEY"


def split_command(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """``words`` as command and args. Where flags can't be named without changing what they say, they stay words."""
    words = [_SHORT.get(word, word) for word in words]
    first = next((number for number, word in enumerate(words) if _is_flag(word)), len(words))
    args: dict[str, Any] = {}
    number = first
    while number < len(words):
        name, has_value, value = words[number].removeprefix("--").partition("=")
        if not words[number].startswith("--") or not matches(FLAG, name) or len(name) < 2 or name in args:
            return words, {}
        number += 1
        values = [value] if has_value else []
        while not has_value and number < len(words) and not _is_flag(words[number]):
            values.append(words[number])
            number += 1
        args[name] = True if not values else values[0] if len(values) == 1 else values
    same = [name.replace("_", "-") for name in args]
    return (words, {}) if len(set(same)) < len(same) else (words[:first], args)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-[0-9.]+", word)


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """``words`` without flags that carry a key, and the names of those flags."""
    kept: list[str] = []
    dropped: list[str] = []
    number = 0
    while number < len(words):
        name, has_value, value = words[number].partition("=")
        after = words[number + 1] if number + 1 < len(words) else ""
        named = name.startswith("--") and secret_like(name.lstrip("-").replace("-", "_"))
        if named and (is_secret_value(value if has_value else after) or "$" in (value or after)):
            dropped.append(name)
            number += 1 if has_value else 2
            continue
        if secret_in(words[number]):
            dropped.append("a word")
        else:
            kept.append(words[number])
        number += 1
    return kept, dropped


def of_image(image: str, words: list[str]) -> list[str]:
    """The whole command, where the image is known to begin it: vLLM's own images run `vllm serve`."""
    if re.match(r"(docker\.io/)?vllm/vllm-openai(:|@|$)", image) and words and words[0] != "vllm":
        words = ["vllm", "serve", *words]
    if words[:2] == ["vllm", "serve"] and "--model" in words[:-1] and (len(words) < 3 or words[2].startswith("-")):
        at = words.index("--model")
        words = ["vllm", "serve", words[at + 1], *words[2:at], *words[at + 2 :]]
    return words


def served_name(command: Sequence[str], args: dict[str, Any]) -> str:
    """The name that a vLLM server lists; empty where it is another program."""
    if list(command[:2]) != ["vllm", "serve"]:
        return ""
    name = args.get("served-model-name") or args.get("served_model_name")
    if isinstance(name, list):
        name = name[0]
    return str(name or (command[2] if len(command) > 2 else ""))


CACHES = {
    ".cache/huggingface": "huggingface", ".cache/flashinfer": "flashinfer", ".cache/vllm": "vllm",
    ".cache/torch": "torch", ".triton": "triton", ".cache/uv": "uv", ".cache/ccache": "ccache",
}  # fmt: skip
_OWN_FILE = "write it into a Compose file of yours, and name that in `compose:` of the profile"
_ONE_FILE = "is not followed: `docker compose config --no-interpolate` makes one file without it"
_ENGINE = re.compile(r"vllm|sglang|llama|tensorrt|trt|pytorch|cuda|tgi|text-generation|triton")
_OF_CALLER = re.compile(r"\$\{?[A-Z_]*UID\b.*:\$\{?[A-Z_]*GID\b.*|\$\{?[A-Z_]*UID\b[^:]*(:-\d+)?\}?")
# Keys whose values mean the same here, by Compose's name.
_SAME = {"network_mode": "network"} | {
    key: key for key in ("container_name", "cpuset", "restart", "shm_size", "user", "working_dir")
}
_AS_WITHOUT = {("network_mode", "bridge"), ("network_mode", "default"), ("restart", "no")}
_SILENT = frozenset(("image", "build", "pull_policy", "profiles", "expose", "extends", "init", "gpus", "runtime"))
_WORDS = frozenset(("environment", "entrypoint", "command"))  # read before the others


def read_foreign(path: Path, label: str) -> Node:
    """A YAML file of another program. Raises ProjectError."""
    node, problems = parse(Source(label, PROJECT, text_of(path, label)), foreign=True)
    fatal = [one for one in problems if "tag" not in one.message]
    if fatal or node is None:
        raise ProjectError(fatal or problems)
    return node


@dataclass
class _Service:
    name: str  # as the profile calls it
    node: Node
    image: str = ""
    build: str = ""  # the Dockerfile

    @property
    def what(self) -> str:
        return f"services.{self.name}"

    @property
    def gpu(self) -> bool:
        items = self.node.items
        return bool(_devices(self.node)) or "gpus" in items or _plain(self.node, "runtime") == "nvidia"


def _map(node: Node | None) -> dict[str, Node]:
    return node.items if node is not None and node.kind == MAP else {}


def _list(node: Node | None) -> list[Node]:
    return node.elements if node is not None and node.kind == LIST else []


def _each(node: Node | None) -> list[Node]:
    """The elements of a list; of any other value, itself."""
    return _list(node) if node is None or node.kind == LIST else [node]


def _plain(node: Node | None, key: str) -> str:
    found = _map(node).get(key)
    return found.text if found is not None and found.kind not in (MAP, LIST, NULL) else ""


def _devices(node: Node | None) -> list[Node]:
    for key in ("deploy", "resources", "reservations", "devices"):
        node = _map(node).get(key)
    return [one for one in _list(node) if "gpu" in [word.text for word in _list(_map(one).get("capabilities"))]]


class Reader:
    """Reads one Compose file into a draft. ``project``: where envgen.yaml will be."""

    def __init__(self, draft: Draft, path: Path, project: Path, dockerfiles: Mapping[str, Path]) -> None:
        self.draft = draft
        self.path = path
        self.folder = path.parent
        self.project = project
        self.dockerfiles = dict(dockerfiles)
        self.volumes: dict[str, Node] = {}

    def read(self, top: Node) -> None:
        """The whole file."""
        found = self._services(top)
        if not found:
            self.note(top, "services", "there are none")
        if p.matches(p.PROJECT_NAME, name := _plain(top, "name")):
            self.draft.name = name
        for service in found:
            if (image := service.node.items.get("image")) is not None:
                service.image = self.text(image, f"{service.what}.image", "base", "image") or ""
            service.build = self._dockerfile_of(service)
        chosen = self._chosen(found)
        if chosen:
            self._image(chosen)
        variables = {service.name: self._environment(service) for service in chosen}
        for service in chosen:
            self._service(service)
        for owner, values in variables.items():  # what all services have the same goes into groups
            for name, (value, node) in values.items():
                same = all(other.get(name, ("", None))[0] == value and name in other for other in variables.values())
                place(self.draft, name, value, node, "" if same else owner)
        if self.draft.get("gpu") is None:
            self.draft.put("gpu", value="all" if any(one.gpu for one in chosen) else "none")
        for service in chosen:
            if self.draft.get("services", service.name) is not None and self.draft.get("gpu") != "none":
                self._gpus(service)
        for key in ("networks", "secrets", "configs"):
            for name, one in _map(top.items.get(key)).items():
                self.note(one, f"{key}.{name}", _OWN_FILE if key != "secrets" else COMPOSE["Service"]["secrets"])

    # --- what a value says ------------------------------------------------------------------------------------------

    def note(self, node: Node, what: str, why: str) -> None:
        self.draft.note(node, what, why)

    def filled(self, node: Node, what: str, *at: str) -> Node | None:
        """The same with defaults for its variables. What has a variable without one is left out, and listed."""
        if node.kind in (MAP, LIST):
            inner = {key: self.filled(one, what, *at) for key, one in node.items.items()}
            kept = {key: one for key, one in inner.items() if one is not None}
            return node.with_items(kept if node.kind == MAP else {str(n): one for n, one in enumerate(kept.values())})
        found = fill(node.text)
        if found.missing:
            self.note(node, what, f"${{{found.missing[0]}}} has no default: write the value into the profile")
            return None
        self.draft.defaulted(*(at or what.split(".")[:2]), names=found.defaults)
        return replace(node, text=found.text)

    def text(self, node: Node, what: str, *at: str) -> str | None:
        """The text, filled; None (and a line in the list) where there is none."""
        if node.kind in (MAP, LIST):
            self.note(node, what, f"expected a text, found {node.seen()}")
            return None
        found = self.filled(node, what, *at)
        return found.text if found is not None else None

    def pairs(self, node: Node | None, what: str) -> Iterator[tuple[str, Node | None, Node]]:
        """``NAME: value`` or ``NAME=value``, as environment, labels and build args have it."""
        for name, one in _map(node).items():
            yield name, None if one.kind == NULL else one, one
        for one in _list(node):
            name, equals, value = one.text.partition("=")
            yield name, replace(one, text=value) if equals else None, one
        if node is not None and node.kind not in (MAP, LIST, NULL):
            self.note(node, what, "expected a mapping or a list")

    def words(self, node: Node | None, what: str) -> list[str] | None:
        """A command's words with secrets left out; [] where there is none, None where they can't be told."""
        if node is None or node.kind == NULL:
            return []
        filled = [fill(one.text) for one in _each(node)]
        self.draft.defaulted(*what.split(".")[:2], names=[name for one in filled for name in one.defaults])
        found = [one.text for one in filled]
        try:
            if node.kind != LIST:
                found = shlex.split(re.sub(r"\\\s*\n", " ", found[0]))
        except ValueError:
            self.note(node, what, "has a quote that is not closed")
            return None
        found, dropped = without_secrets(found)
        for flag in dropped:
            why = "looks like a secret, so it was not copied"
            if flag == "--api-key":
                secret(self.draft, API_KEY)
                why += f"; the server reads {API_KEY}, which is in `secrets`"
            self.note(node, f"{what} {flag}", why)
        for name in (name for one in filled for name in one.missing):
            if any(f"${{{name}}}" in word for word in found):
                self.note(node, what, f"${{{name}}} has no default: write the value into the command")
                return None
        return found

    # --- files, services and the image ------------------------------------------------------------------------------

    def _services(self, top: Node) -> list[_Service]:
        if (include := top.items.get("include")) is not None:
            self.note(include, "include", _ONE_FILE)
        self.volumes = _map(top.items.get("volumes"))
        services = _map(top.items.get("services"))
        made: list[_Service] = []
        for name, node in services.items():
            if node.kind != MAP:
                self.note(node, f"services.{name}", "expected a mapping")
                continue
            own = self.draft.services[name] = _name(name, {one.name for one in made})
            made.append(_Service(own, node))
            if "extends" in node.items:
                self.note(node.items["extends"], f"services.{name}.extends", _ONE_FILE)
        return made

    def _outside(self, text: str) -> str:
        """Why a file that this one names is not read; "" for a plain one in its folder or below."""
        try:
            path = (self.folder / text).resolve()
            if text.startswith("~") or "://" in text or not path.is_relative_to(self.folder.resolve()):
                return "outside of this folder"
            return "" if path.is_file() else "there is no such file"
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, a link to itself
            return "there is no such file"

    def _dockerfile_of(self, service: _Service) -> str:
        """The Dockerfile that builds it, by a name that stands for its content; empty where nothing is built."""
        node = service.node.items.get("build")
        if node is None or node.kind == NULL:
            return ""
        what = f"{service.what}.build"
        options = node.items if node.kind == MAP else {"context": node}
        if "dockerfile_inline" in options:
            self.note(node, what, "its Dockerfile stands in the Compose file: put it into a file, and name that")
            return what
        words = [self.text(options[key], what) if key in options else "" for key in ("context", "dockerfile")]
        if None in words:
            return what
        path = posixpath.normpath(posixpath.join(words[0] or ".", words[1] or "Dockerfile"))
        given = next((label for label in self.dockerfiles if Path(label).name == posixpath.basename(path)), "")
        if given:
            return given
        if why := self._outside(path):
            self.note(node, f"{what} {path}", f"{why}: name it behind the Compose file")
        else:
            self.dockerfiles[path] = self.folder / path
        return path

    def _chosen(self, found: list[_Service]) -> list[_Service]:
        """The services of one image: a profile has one. Those of others are listed."""
        built = {one.image: one.build for one in found if one.build and one.image}
        groups: dict[str, list[_Service]] = {}
        for one in found:
            one.build = one.build or built.get(one.image, "")
            groups.setdefault(one.build or one.image, []).append(one)
        for one in groups.pop("", []):
            self.note(one.node, one.what, "it has no image")

        def rank(key: str) -> tuple[bool, bool, bool]:
            members = groups[key]
            return any(m.gpu for m in members), bool(members[0].build), bool(_ENGINE.search(members[0].image))

        best = max(groups, key=rank, default="")
        for key in groups.keys() - {best}:
            for one in groups[key]:
                why = f"runs another image ({key}); a profile has one. Keep it: {_OWN_FILE}"
                self.note(one.node, one.what, why)
        return groups.get(best, [])

    def _image(self, chosen: list[_Service]) -> None:
        first = chosen[0]
        if not first.build and self.dockerfiles:  # they were named: one of them makes this image
            first.build = next(iter(self.dockerfiles))
        if not first.build:
            self.draft.put("base", "image", value=first.image, at=first.node.items["image"])
            dockerfile.python_of(self.draft, first.image)
            return
        options = _map(next((one.node.items["build"] for one in chosen if "build" in one.node.items), None))
        args: dict[str, str] = {}
        for name, value, one in self.pairs(options.get("args"), "build.args"):
            text = self.text(value, f"build.args.{name}", "base") if value is not None else None
            if text is not None and not refused(name, text):
                args[name] = text
            else:
                self.note(one, f"build.args.{name}", refused(name, text or "") or "its value is not known here")
        for key, one in options.items():
            if key not in ("context", "dockerfile", "target", "args", "dockerfile_inline"):
                self.note(one, f"build.{key}", "the image is built from the profile's keys")
        if (path := self.dockerfiles.get(first.build)) is not None:
            target = options["target"].text if "target" in options else ""
            dockerfile.read(self.draft, text_of(path, first.build), first.build, target, args)

    # --- one service ------------------------------------------------------------------------------------------------

    def _environment(self, service: _Service) -> dict[str, tuple[str, Node]]:
        found: dict[str, tuple[str, Node]] = {}
        for name, value, node in self.pairs(service.node.items.get("environment"), "environment"):
            what = f"{service.what}.environment.{name}"
            filled = fill(value.text if value is not None else f"${{{name}}}")
            if filled.missing and filled.text == f"${{{filled.missing[0]}}}":  # one variable, and nothing else
                asked_for = filled.missing[0]
                if p.matches(p.ENV_NAME, name) and (asked_for == name or refused(name, "a-value-of-its-own")):
                    secret(self.draft, name)
                    if asked_for != name:
                        self.note(node, what, f"was ${{{asked_for}}}: export it as {name} (it is in `secrets`)")
                    continue
            if filled.missing:
                self.note(node, what, f"${{{filled.missing[0]}}} has no default: write the value into `env`")
                continue
            self.draft.defaulted("env", names=filled.defaults)
            found[name] = filled.text, node
        return found

    def _service(self, service: _Service) -> None:
        if not self._command(service):
            return
        at = ("services", service.name)
        user = service.node.items.get("user")
        image_user = (self.draft.get("_image") or {}).get("user")
        if user is None and image_user:
            self.draft.put(*at, "user", value=image_user)
        handlers = {
            "ports": self._ports, "volumes": self._mounts, "ulimits": self._ulimits, "healthcheck": self._health,
            "labels": self._labels, "deploy": self._deploy, "devices": self._append, "cap_add": self._append,
            "env_file": self._env_file, "ipc": self._ipc,
        }  # fmt: skip
        for key, one in service.node.items.items():
            if key in _SILENT or key in _WORDS or key.startswith("x-") or one.kind == NULL:
                continue
            if one is user and _OF_CALLER.fullmatch(one.text[:200]):
                self.draft.put(*at, "user", value="host")
            elif (node := self.filled(one, f"{service.what}.{key}", *at)) is None:
                continue
            elif key in handlers:
                handlers[key](service, key, node)
            elif key in ("stdin_open", "tty") and node.text.lower() in ("true", "false"):
                if node.text.lower() == "true":
                    self.draft.put(*at, "interactive", value=True)
            elif key in _SAME:
                if (key, node.text) not in _AS_WITHOUT:
                    self.draft.put(*at, _SAME[key], value=node.text, at=node)
            else:
                self.note(node, f"{service.what}.{key}", COMPOSE["Service"].get(key, "a profile has no such key"))
        self._ready(service)

    def _command(self, service: _Service) -> bool:
        node, at, what = service.node, ("services", service.name), f"{service.what}.command"
        image = self.draft.get("_image") or {}
        entry = self.words(node.items.get("entrypoint"), f"{service.what}.entrypoint")
        own = self.words(node.items.get("command"), what)
        if entry is None or own is None:
            self.note(node, service.what, "its command is not known, so it is not in the profile")
            return False
        if "command" not in node.items and "entrypoint" not in node.items:
            own = list(image.get("CMD") or ())
        words = [*(entry if "entrypoint" in node.items else image.get("ENTRYPOINT") or ()), *own]
        if not service.build and "entrypoint" not in node.items:
            words = of_image(service.image, words)
        words = [_one_line(word) for word in words]
        place_ = node.items.get("command", node)
        if not words:
            self.note(place_, what, "it has no command, so the service is not in the profile")
            return False
        if words[0].startswith("-"):
            self.note(place_, what, "the image's ENTRYPOINT begins it: write the program first")
        program, args = split_command(words)
        self.draft.put(*at, "command", value=program, at=place_)
        for flag, value in args.items():
            self.draft.put(*at, "args", flag, value=value, at=place_)
        return self.draft.get(*at, "command") is not None

    def _ports(self, service: _Service, key: str, node: Node) -> None:
        for one in _each(node):
            text = one.text
            if one.kind == MAP:
                text = ":".join(filter(None, (_plain(one, part) for part in ("host_ip", "published", "target"))))
                text += f"/{_plain(one, 'protocol')}" if _plain(one, "protocol") else ""
            text = text.removesuffix("/tcp")
            text = f"auto:{text}" if text.isdecimal() else text
            self.draft.add("services", service.name, "ports", value=text, at=one)

    def _ready(self, service: _Service) -> None:
        """What `envgen up` can wait for, where a vLLM server's port is published."""
        found = self.draft.get("services", service.name)
        name = served_name(found["command"], found.get("args", {}))
        port = str(found.get("args", {}).get("port", "8000"))
        if name and any(text.endswith(f":{port}") for text in found.get("ports", ())):
            self.draft.put("services", service.name, "ready", value={"model": name, "port": _number(port)})
            self.draft.remark("services", service.name, "ready", text="`envgen up` waits until it completes a prompt.")

    def _mounts(self, service: _Service, key: str, node: Node) -> None:
        what = f"{service.what}.volumes"
        for one in _each(node):
            if one.kind == MAP:
                kind, host, target = (_plain(one, part) for part in ("type", "source", "target"))
                mode = "ro" if _plain(one, "read_only").lower() == "true" else ""
                if kind not in ("bind", "volume"):
                    self.note(one, f"{what} {target}", COMPOSE["Service"]["tmpfs"])
                    continue
            else:
                host, target, mode = (*one.text.split(":", 2), "", "")[:3] if ":" in one.text else ("", one.text, "")
            if not target.startswith("/"):
                self.note(one, what, "is not a folder of the container")
                continue
            if set(mode.split(",")) - {"", "ro", "rw", "z", "Z", "cached", "delegated"}:
                self.note(one, f"{what} {target}", f"its options are not kept: {mode}")
            self._mount(service, one, host, posixpath.normpath(target), "ro" in mode.split(","))

    def _mount(self, service: _Service, node: Node, host: str, target: str, read_only: bool) -> None:
        folder = host.startswith((".", "/", "~"))
        here = self._host(host) if folder else host
        cache = next((name for end, name in CACHES.items() if target.endswith(f"/{end}")), "")
        taken = self.draft.get("caches") or {}
        if cache and not read_only and taken.get(cache, {"path": target})["path"] == target:
            self._cache(node, cache, here if folder else "", target, host)
        elif not folder:
            others = {key for key, one in taken.items() if one["path"] != target}
            self._cache(node, _name(host or posixpath.basename(target), others), "", target, host)
        elif (name := posixpath.basename(target)) in ("vllm", "flashinfer") and self._is_checkout(service, target):
            distribution = {"flashinfer": "flashinfer-python"}.get(name, name)
            source = {"package": name, "distribution": distribution, "mount": target}
            self.draft.put("mode", value="development")
            self._hosted(node, ("sources", name), source, ("origin", "checkout"), here)
        else:
            at = ("services", service.name, "mounts")
            name = _name(posixpath.basename(target) or "root", set(self.draft.get(*at) or ()))
            text = f"{here}:{target}" + (":ro" if read_only else "")
            self.draft.put(*at, name, value=text, at=node, local=here.startswith("/"))

    def _is_checkout(self, service: _Service, target: str) -> bool:
        """Whether Python is told to import from there."""
        found = {name: value for name, value, _ in self.pairs(service.node.items.get("environment"), "environment")}
        value = found.get("PYTHONPATH")
        return target in (
            fill(value.text).text.split(":") if value is not None else self.draft.get("python_path") or ()
        )

    def _hosted(self, node: Node, at: tuple[str, ...], value: dict[str, str], key: tuple[str, ...], host: str) -> None:
        """An entry with a folder of this machine; an absolute one is for the local file."""
        self.draft.put(*at, value=dict(value), at=node)
        if host.startswith("/"):
            self.draft.put(*at, *key, value=host, at=node, local=True)
            host = f"../{at[-1]}" if at[0] == "sources" else ""
        if host:
            self.draft.put(*at, *key, value=host, at=node)

    def _cache(self, node: Node, name: str, host: str, target: str, volume: str) -> None:
        if (there := self.draft.get("caches", name)) is not None:
            if self.draft.local.get("caches", {}).get(name, there).get("host", "") != host:
                self.note(node, f"caches.{name}", "another service has another folder for it; a profile has one")
            return
        self._hosted(node, ("caches", name), {"path": target}, ("host",), host)
        if volume and not host:
            self.draft.remark("caches", name, text=f"Was the volume {volume}; envgen's own starts empty.")
            described = self.volumes.get(volume)
            if _map(described):
                why = "envgen names its volumes itself: what it holds is not taken over"
                self.note(described or node, f"volumes.{volume}", why)

    def _host(self, host: str) -> str:
        """A path of this machine as envgen.yaml writes it: from the folder of the project."""
        if host.startswith(("/", "~")):
            return posixpath.normpath(host)
        path = posixpath.normpath(posixpath.join(str(self.folder.resolve()), host))
        text = posixpath.relpath(path, str(self.project.resolve()))
        return text if text.count("..") < 4 else path

    def _shared(self, node: Node, what: str, *path: str, value: object) -> None:
        """A value of the profile, which several services may name."""
        if self.draft.get(*path) not in (None, value):
            self.note(node, what, "another service has another; a profile has one")
        else:
            self.draft.put(*path, value=value, at=node)

    def _ulimits(self, service: _Service, key: str, node: Node) -> None:
        for name, one in _map(node).items():
            limits = [_plain(one, "soft"), _plain(one, "hard")] if one.kind == MAP else [one.text, one.text]
            value = dict(zip(("soft", "hard"), map(_number, limits), strict=True))
            self._shared(one, f"{service.what}.ulimits.{name}", "ulimits", name, value=value)

    def _ipc(self, service: _Service, key: str, node: Node) -> None:
        self._shared(node, f"{service.what}.ipc", "ipc", value=node.text)

    def _health(self, service: _Service, key: str, node: Node) -> None:
        test = _map(node).get("test")
        words = [one.text for one in _each(test)]
        if _plain(node, "disable").lower() == "true" or words[:1] == ["NONE"]:
            return
        if test is None or not words:
            self.note(node, f"{service.what}.healthcheck", "it has no test")
            return
        shell = test.kind != LIST or words[0] == "CMD-SHELL"
        words = words[1:] if words[0] in ("CMD", "CMD-SHELL") else words
        text = " ".join(words)
        made: dict[str, object] = {"command": ["sh", "-c", text] if shell else words}
        if where := asked(text):
            made = {"http": where[0], "port": int(where[1])}
        for name in ("interval", "timeout", "start_period"):
            if found := seconds(_plain(node, name)):
                made[name] = found
        if retries := _plain(node, "retries"):
            made["retries"] = _number(retries)
        self.draft.put("services", service.name, "health", value=made, at=test)

    def _labels(self, service: _Service, key: str, node: Node) -> None:
        for name, value, one in self.pairs(node, f"{service.what}.labels"):
            text = value.text if value is not None else ""
            self.draft.put("services", service.name, "labels", name, value=text, at=one)

    def _deploy(self, service: _Service, key: str, node: Node) -> None:
        for name, one in _map(node).items():
            if name != "resources" or "limits" in _map(one):
                self.note(one, f"{service.what}.deploy.{name}", COMPOSE["Service"]["deploy"])

    def _append(self, service: _Service, key: str, node: Node) -> None:
        """Devices and capabilities."""
        for one in _each(node):
            if one.text.startswith("nvidia.com/gpu"):
                self.draft.put("gpu", value="cdi")
            else:
                self.draft.add("services", service.name, key, value=one.text.removeprefix("CAP_"), at=one)

    def _env_file(self, service: _Service, key: str, node: Node) -> None:
        for one in _each(node):
            file = _plain(one, "path") if one.kind == MAP else one.text
            there = " (there is no such file)" if "no such" in self._outside(file) else ""
            why = "not read: its variables go into `env`, keys and tokens by name into `secrets`"
            self.note(one, f"{service.what}.env_file {file}{there}", why)

    def _gpus(self, service: _Service) -> None:
        """Who gets which GPUs."""
        at = ("services", service.name, "gpu")
        if not service.gpu and self.draft.get("gpu") == "all":
            self.draft.put(*at, value=[])
        for device in _devices(service.node):
            ids, count = [one.text for one in _list(device.items.get("device_ids"))], _plain(device, "count")
            if not ids and re.fullmatch(r"[1-9][0-9]?", count):
                ids = [str(number) for number in range(int(count))]
                self.draft.remark(*at, text=f"Was any {count}: the engine chose.")
            if ids:
                self.draft.put(*at, value=ids, at=device)


def asked(test: str) -> tuple[str, str] | None:
    """The path and the port that a health check asks by HTTP; None where it does something else."""
    found = re.search(r"https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):([0-9]{1,5})(/[\w./-]*)?", test)
    return (found[2] or "/", found[1]) if found and re.search(r"curl|wget|urlopen|requests", test) else None


def name_like(text: str) -> str:
    """A name of the profile's kind, as near to ``text`` as can be."""
    plain = "_".join(re.findall(r"[a-z0-9]+", text.lower()) or ["x"])
    return (plain if plain[0].isalpha() else f"n{plain}")[:36].rstrip("_")


def _name(text: str, taken: set[str]) -> str:
    """The same, and not taken."""
    plain = name_like(text)
    number, name = 2, plain
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    return name


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else text


def _one_line(word: str) -> str:
    """A script for a shell without its continued lines; one of several commands stays as it is."""
    lines = [line.strip() for line in word.replace("\\\n", " ").splitlines() if line.strip()]
    return lines[0] if "\n" in word and len(lines) == 1 else word


def seconds(text: str) -> str:
    """A duration of Compose (1m30s) as a profile's."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|m|s)", text[:40])
    total = sum(float(count) * {"h": 3600, "m": 60, "s": 1, "ms": 0.001, "us": 0}[unit] for count, unit in parts)
    return f"{max(1, round(total))}s" if parts else ""
