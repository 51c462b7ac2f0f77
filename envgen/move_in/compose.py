"""A Compose file as a profile. It is a stranger's: nothing is run, no variable of this machine and no `.env` is read,
and other files count only where they are plain files of its own folder."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.errors import ProjectError
from envgen.move_in import command, dockerfile
from envgen.move_in.draft import Draft, refused
from envgen.move_in.fill import fill
from envgen.move_in.variables import place, secret, settle
from envgen.profile import patterns as p
from envgen.profile.hints import COMPOSE
from envgen.profile.tree import BOOL, LIST, MAP, NULL, PROJECT, Node, Source
from envgen.profile.values import ByteSize, PortMapping
from envgen.profile.yamlparse import parse, text_of

CACHES = {
    ".cache/huggingface": "huggingface", ".cache/flashinfer": "flashinfer", ".cache/vllm": "vllm",
    ".cache/torch": "torch", ".triton": "triton", ".cache/uv": "uv", ".cache/ccache": "ccache",
}  # fmt: skip
_OWN_FILE = "write it into a Compose file of yours, and name that in `compose:` of the profile"
_DEEP = 8  # files and services that extend each other
_MANY = 50  # other files
_ENGINE = re.compile(r"vllm|sglang|llama|tensorrt|trt|pytorch|cuda|tgi|text-generation|triton")
_SIMPLE = {  # by the key of Compose: ours, and what it must look like
    "container_name": ("container_name", p.CONTAINER_NAME),
    "cpuset": ("cpuset", p.CPUS),
    "network_mode": ("network", p.NETWORK),
    "restart": ("restart", p.RESTART),
    "user": ("user", p.USER),
    "working_dir": ("working_dir", r"/.*"),
}
_OF_CALLER = re.compile(r"\$\{?[A-Z_]*UID\b.*:\$\{?[A-Z_]*GID\b.*|\$\{?[A-Z_]*UID\b[^:]*(:-\d+)?\}?")
_ROOT = {"0": "root", "0:0": "root", "root:root": "root"}
_SILENT = frozenset(
    ("image", "build", "pull_policy", "profiles", "expose", "init", "environment", "entrypoint", "command", "gpus",
     "runtime")
)  # fmt: skip


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
    base: Path = Path()  # the folder that its relative paths start from

    @property
    def gpu(self) -> bool:
        node = self.node
        return bool(_devices(node)) or "gpus" in node.items or _plain(node, "runtime") == "nvidia"


def _plain(node: Node, key: str) -> str:
    found = node.items.get(key)
    return found.text if found is not None and found.kind not in (MAP, LIST, NULL) else ""


def _devices(node: Node) -> list[Node]:
    at: Node | None = node
    for key in ("deploy", "resources", "reservations", "devices"):
        at = at.items.get(key) if at is not None and at.kind == MAP else None
    found = at.elements if at is not None and at.kind == LIST else []
    return [one for one in found if one.kind == MAP and "gpu" in _texts(one.items.get("capabilities"))]


def _texts(node: Node | None) -> list[str]:
    return [one.text for one in node.elements] if node is not None and node.kind == LIST else []


class Reader:
    """Reads one Compose file into a draft. ``project``: where envgen.yaml will be."""

    def __init__(self, draft: Draft, path: Path, project: Path, dockerfiles: Mapping[str, Path]) -> None:
        self.draft = draft
        self.path = path
        self.folder = path.parent
        self.project = project
        self.dockerfiles = dict(dockerfiles)
        self.volumes: dict[str, Node] = {}
        self.others = 0  # files that were read besides

    # --- what a value says ------------------------------------------------------------------------------------------

    def note(self, node: Node, what: str, why: str) -> None:
        self.draft.note(node.source.label, node.key_line or node.line, what, why)

    def put(self, service: _Service, *path: str, value: object) -> None:
        self.draft.put("services", service.name, *path, value=value)

    def text(self, node: Node, what: str, *at: str) -> str | None:
        """The text with defaults for its variables; None (and a line in the list) where one has no default."""
        if node.kind in (MAP, LIST):
            self.note(node, what, f"expected a text, found {node.seen()}")
            return None
        filled = fill(node.text)
        if filled.missing:
            self.note(node, what, f"${{{filled.missing[0]}}} has no default: write the value into the profile")
            return None
        if filled.defaults:
            self.draft.defaulted(*(at or tuple(what.split(".")[:2])), names=filled.defaults)
        return filled.text

    def pairs(self, node: Node | None, what: str) -> Iterator[tuple[str, Node | None, Node]]:
        """``NAME: value`` or ``NAME=value``, as environment, labels and build args have it."""
        if node is None or node.kind == NULL:
            return
        if node.kind == MAP:
            for name, one in node.items.items():
                yield name, None if one.kind == NULL else one, one
        elif node.kind == LIST:
            for one in node.elements:
                name, equals, value = one.text.partition("=")
                yield name, replace(one, text=value) if equals else None, one
        else:
            self.note(node, what, "expected a mapping or a list")

    def words(self, node: Node | None, what: str) -> list[str] | None:
        """A command's words with secrets left out; [] where there is none, None where they can't be told."""
        if node is None or node.kind == NULL:
            return []
        texts = [one.text for one in node.elements] if node.kind == LIST else [node.text]
        filled = [fill(text) for text in texts]
        self.draft.defaulted(*what.split(".")[:2], names=[name for one in filled for name in one.defaults])
        found = [one.text for one in filled]
        try:
            if node.kind != LIST:
                found = shlex.split(re.sub(r"\\\s*\n", " ", found[0]))
        except ValueError:
            self.note(node, what, "has a quote that is not closed")
            return None
        found, dropped = command.without_secrets(found)
        for flag in dropped:
            why = "looks like a secret, so it was not copied"
            if flag == "--api-key":
                secret(self.draft, command.API_KEY)
                why += f"; the server reads {command.API_KEY}, which is in `secrets`"
            self.note(node, f"{what} {flag}", why)
        for name in (name for one in filled for name in one.missing):
            if any(f"${{{name}}}" in word for word in found):
                self.note(node, what, f"${{{name}}} has no default: write the value into the command")
                return None
        return found

    # --- files and services -----------------------------------------------------------------------------------------

    def read(self, top: Node) -> None:
        """The whole file."""
        found = self._services(top, self.folder, 0)
        if not found:
            self.note(top, "services", "there are none")
        name = _plain(top, "name")
        if name and p.matches(p.PROJECT_NAME, name):
            self.draft.name = name
        for service in found:
            if (image := service.node.items.get("image")) is not None:
                service.image = self.text(image, f"services.{service.name}.image", "base", "image") or ""
            service.build = self._dockerfile_of(service)
        chosen = self._chosen(found)
        self._image(chosen)
        groups: dict[str, dict[str, tuple[str, Node]]] = {}
        for service in chosen:
            groups[service.name] = self._environment(service)
        for service in chosen:
            self._service(service)
        self._variables(groups)
        self._gpus(chosen)
        settle(self.draft, self.path.name)
        for key in ("networks", "secrets", "configs"):
            for name, one in self._section(top, key).items():
                self.note(one, f"{key}.{name}", _OWN_FILE if key != "secrets" else COMPOSE["Service"]["secrets"])

    def _section(self, top: Node, key: str) -> dict[str, Node]:
        node = top.items.get(key)
        return node.items if node is not None and node.kind == MAP else {}

    def _services(self, top: Node, base: Path, depth: int) -> list[_Service]:
        made: list[_Service] = []
        include = top.items.get("include")
        for one in include.elements if include is not None and include.kind == LIST else []:
            path = one.items.get("path") if one.kind == MAP else one
            if path is None or path.kind in (MAP, LIST) or set(one.items) - {"path"}:
                self.note(one, "include", "only one file of this folder can be read here")
            elif (node := self._other(path, "include", base, depth)) is not None:
                made += self._services(node, base / Path(path.text).parent, depth + 1)
        self.volumes |= self._section(top, "volumes")
        for name, node in self._section(top, "services").items():
            if node.kind != MAP:
                self.note(node, f"services.{name}", "expected a mapping")
                continue
            own = _name(name, {one.name for one in made})
            self.draft.services[name] = own
            made.append(_Service(own, self._extended(node, top, f"services.{name}", base, depth), base=base))
        return made

    def _other(self, node: Node, what: str, base: Path, depth: int) -> Node | None:
        """Another file that this one names, where it is a plain one of the same folder or below it."""
        text = self.text(node, what)
        if text is None:
            return None
        self.others += 1
        why = "too many files" if depth >= _DEEP or self.others > _MANY else self._outside(base, text)
        if why:
            self.note(node, f"{what} {text}", f"{why}, so it was not read")
            return None
        try:
            return read_foreign(base / text, text)
        except ProjectError as error:
            self.note(node, f"{what} {text}", f"cannot be read: {error.problems[0].message}")
            return None

    def _outside(self, base: Path, text: str) -> str:
        """Why a file that this one names is not read; "" for a plain one in its folder or below."""
        try:
            path = (base / text).resolve()
            if text.startswith("~") or "://" in text or not path.is_relative_to(self.folder.resolve()):
                return "outside of this folder"
            return "" if path.is_file() else "there is no such file"
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, a link to itself
            return "there is no such file"

    def _extended(self, node: Node, top: Node, what: str, base: Path, depth: int) -> Node:
        extends = node.items.get("extends")
        if extends is None:
            return node
        rest = node.with_items({key: one for key, one in node.items.items() if key != "extends"})
        named = extends.items.get("service") if extends.kind == MAP else extends
        file = extends.items.get("file") if extends.kind == MAP else None
        if file is not None:
            other = self._other(file, f"{what}.extends", base, depth)
            top = other if other is not None else top
            if other is None:
                return rest
        below = self._section(top, "services").get(named.text) if named is not None else None
        if below is None or below.kind != MAP or depth >= _DEEP:
            why = "extends itself" if depth >= _DEEP else "there is no such service"
            self.note(extends, f"{what}.extends", f"{why}, so it was not followed")
            return rest
        return _laid_over(self._extended(below, top, what, base, depth + 1), rest)

    def _dockerfile_of(self, service: _Service) -> str:
        """The Dockerfile that builds it, by a name that stands for its content; empty where nothing is built."""
        node = service.node.items.get("build")
        if node is None or node.kind == NULL:
            return ""
        what = f"services.{service.name}.build"
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
        if why := self._outside(service.base, path):
            self.note(node, f"{what} {path}", f"{why}: name it behind the Compose file")
        else:
            self.dockerfiles[path] = service.base / path
        return path

    def _chosen(self, found: list[_Service]) -> list[_Service]:
        """The services of one image: a profile has one. Those of others are listed."""
        built = {one.image: one.build for one in found if one.build and one.image}
        keys = [one.build or built.get(one.image) or one.image for one in found]
        for one, key in zip(found, keys, strict=True):
            one.build = one.build or built.get(one.image, "")
            if not key:
                self.note(one.node, f"services.{one.name}", "it has no image")
        scores = {
            key: max(4 * one.gpu + 2 * bool(one.build) + bool(_ENGINE.search(one.image))
                     for one, other in zip(found, keys, strict=True) if other == key)
            for key in keys if key
        }  # fmt: skip
        best = max(scores, key=lambda key: scores[key], default="")
        for one, key in zip(found, keys, strict=True):
            if key and key != best:
                why = f"runs another image ({key}); a profile has one. Keep it: {_OWN_FILE}"
                self.note(one.node, f"services.{one.name}", why)
        return [one for one, key in zip(found, keys, strict=True) if key and key == best]

    def _image(self, chosen: list[_Service]) -> None:
        first = next(iter(chosen), None)
        if first is None:
            return
        if not first.build and self.dockerfiles:  # they were named: one of them makes this image
            first.build = next(iter(self.dockerfiles))
        build = next((one.node.items["build"] for one in chosen if "build" in one.node.items), None)
        if first.build:
            options = build.items if build is not None and build.kind == MAP else {}
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
        elif refused("image", first.image):
            self.note(first.node, f"services.{first.name}.image", refused("image", first.image))
        else:
            self.draft.put("base", "image", value=first.image)
            dockerfile.python_of(self.draft, first.image)

    # --- one service ------------------------------------------------------------------------------------------------

    def _environment(self, service: _Service) -> dict[str, tuple[str, Node]]:
        found: dict[str, tuple[str, Node]] = {}
        for name, value, node in self.pairs(service.node.items.get("environment"), "environment"):
            what = f"services.{service.name}.environment.{name}"
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

    def _variables(self, services: dict[str, dict[str, tuple[str, Node]]]) -> None:
        """What all services have the same goes into groups; the rest into each service."""
        for service, variables in services.items():
            for name, (value, node) in variables.items():
                same = all(other.get(name, ("", None))[0] == value and name in other for other in services.values())
                place(self.draft, name, value, node.source.label, node.key_line or node.line, "" if same else service)

    def _service(self, service: _Service) -> None:
        node, at = service.node, ("services", service.name)
        what = f"services.{service.name}"
        if not self._command(service):
            return
        handlers = {
            "ports": self._ports, "volumes": self._mounts, "ulimits": self._ulimits, "healthcheck": self._health,
            "labels": self._labels, "deploy": self._deploy,
            "devices": self._list, "cap_add": self._list, "env_file": self._env_file, "ipc": self._ipc,
            "shm_size": self._shm,
        }  # fmt: skip
        for key, one in node.items.items():
            if key in _SILENT or key.startswith("x-") or one.kind == NULL:
                continue
            if key in handlers:
                handlers[key](service, one, what)
            elif key in ("stdin_open", "tty") and one.kind == BOOL:
                if one.text.lower() == "true":
                    self.put(service, "interactive", value=True)
            elif key in _SIMPLE:
                self._simple(service, key, one, f"{what}.{key}")
            else:
                self.note(one, f"{what}.{key}", COMPOSE["Service"].get(key, "a profile has no such key"))
        image = self.draft.get("_image") or {}
        if "user" in image and "user" not in node.items:
            self.draft.put(*at, "user", value=image["user"])

    def _command(self, service: _Service) -> bool:
        node, at = service.node, ("services", service.name)
        what = f"services.{service.name}.command"
        image = self.draft.get("_image") or {}
        entry = self.words(node.items.get("entrypoint"), f"services.{service.name}.entrypoint")
        own = self.words(node.items.get("command"), what)
        if entry is None or own is None:
            self.note(node, f"services.{service.name}", "its command is not known, so it is not in the profile")
            return False
        if "command" not in node.items and "entrypoint" not in node.items:
            own = list(image.get("CMD") or ())
        words = [*(entry if "entrypoint" in node.items else image.get("ENTRYPOINT") or ()), *own]
        if not service.build and "entrypoint" not in node.items:
            words = command.of_image(service.image, words)
        words = [_one_line(word) for word in words]
        if not words or any(refused("", word) for word in words):
            why = "it has no command" if not words else "its command has line breaks: put them into a script"
            self.note(node.items.get("command", node), what, f"{why}, so the service is not in the profile")
            return False
        if words[0].startswith("-"):
            self.note(
                node.items.get("command", node), what, "the image's ENTRYPOINT begins it: write the program first"
            )
        program, args = command.split(words)
        self.draft.put(*at, "command", value=program)
        if args:
            self.draft.put(*at, "args", value=args)
        return True

    def _ports(self, service: _Service, node: Node, what: str) -> None:
        for one in node.elements:
            key = f"{what}.ports"
            if one.kind == MAP:
                parts = [_plain(one, part) for part in ("host_ip", "published", "target")]
                text: str | None = ":".join(part for part in parts if part)
                if _plain(one, "protocol") not in ("", "tcp"):
                    text = f"{text}/{_plain(one, 'protocol')}"
                text = self.text(replace(one, kind="text", text=text or ""), key, "services", service.name, "ports")
            else:
                text = self.text(one, key, "services", service.name, "ports")
            if text is None:
                continue
            text = text.removesuffix("/tcp")
            if re.fullmatch(r"[0-9]+", text):
                text = f"auto:{text}"
            try:
                PortMapping.parse(text)
            except ValueError as error:
                self.note(one, f"{key} {text}", str(error))
                continue
            if _plain(service.node, "network_mode") == "host":
                self.note(one, f"{key} {text}", "has no effect with network: host")
                continue
            self.draft.add("services", service.name, "ports", value=text)
        self._ready(service)

    def _ready(self, service: _Service) -> None:
        """What `envgen up` can wait for, where a vLLM server's port is published."""
        found = self.draft.get("services", service.name)
        name = command.served_name(found["command"], found.get("args", {}))
        port = str(found.get("args", {}).get("port", "8000"))
        if name and any(text.endswith(f":{port}") for text in found.get("ports", ())):
            self.put(service, "ready", value={"model": name, "port": port})
            self.draft.remark("services", service.name, "ready", text="`envgen up` waits until it completes a prompt.")

    def _mounts(self, service: _Service, node: Node, what: str) -> None:
        for one in node.elements:
            if one.kind == MAP:
                kind, host, target = (_plain(one, key) for key in ("type", "source", "target"))
                mode = "ro" if _plain(one, "read_only").lower() == "true" else ""
                if kind not in ("bind", "volume"):
                    self.note(one, f"{what}.volumes {target}", COMPOSE["Service"]["tmpfs"])
                    continue
                text = self.text(replace(one, kind="text", text=f"{host}\1{target}"), f"{what}.volumes")
                host, _, target = (text or "").partition("\1")
            else:
                text = self.text(one, f"{what}.volumes", "services", service.name)
                parts = (text or "").split(":")
                host, target = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
                mode = parts[2] if len(parts) > 2 else ""
            if text is None:
                continue
            if not target.startswith("/"):
                self.note(one, f"{what}.volumes", "is not a folder of the container")
                continue
            if set(mode.split(",")) - {"", "ro", "rw", "z", "Z", "cached", "delegated"}:
                self.note(one, f"{what}.volumes {target}", f"its options are not kept: {mode}")
            self._mount(service, one, host, posixpath.normpath(target), "ro" in mode.split(","))

    def _mount(self, service: _Service, node: Node, host: str, target: str, read_only: bool) -> None:
        what = f"services.{service.name}.volumes"
        folder = host.startswith((".", "/", "~"))
        place_ = self._host(service, host) if folder else host
        cache = next((name for end, name in CACHES.items() if target.endswith(f"/{end}")), "")
        taken = self.draft.get("caches") or {}
        if cache and not read_only and taken.get(cache, {"path": target})["path"] == target:
            self._cache(node, cache, place_ if folder else "", target, host)
        elif not folder:
            name = _name(
                host or posixpath.basename(target), {key for key, one in taken.items() if one["path"] != target}
            )
            self._cache(node, name, "", target, host)
        elif (name := posixpath.basename(target)) in ("vllm", "flashinfer") and self._is_checkout(service, target):
            distribution = {"flashinfer": "flashinfer-python"}.get(name, name)
            source = {"package": name, "distribution": distribution, "mount": target}
            self.draft.put("mode", value="development")
            self._hosted(("sources", name), source, ("origin", "checkout"), place_)
        else:
            at = ("services", service.name, "mounts")
            name = _name(posixpath.basename(target) or "root", set(self.draft.get(*at) or ()))
            text = f"{place_}:{target}" + (":ro" if read_only else "")
            if "$" in place_ or "{" in place_:
                self.note(node, what, f"{target}: its folder has a variable without a default")
                return
            self.draft.put(*at, name, value=text, local=place_.startswith("/"))

    def _is_checkout(self, service: _Service, target: str) -> bool:
        """Whether Python is told to import from there."""
        found = {name: value for name, value, _ in self.pairs(service.node.items.get("environment"), "environment")}
        value = found.get("PYTHONPATH")
        paths = fill(value.text).text.split(":") if value is not None else self.draft.get("python_path") or []
        return target in paths

    def _hosted(self, at: tuple[str, ...], value: dict[str, str], key: tuple[str, ...], host: str) -> None:
        """An entry with a folder of this machine; an absolute one is for the local file."""
        self.draft.put(*at, value=dict(value))
        if host.startswith("/"):
            self.draft.put(*at, *key, value=host, local=True)
            if at[0] == "sources":
                self.draft.put(*at, *key, value=f"../{at[-1]}")
        else:
            self.draft.put(*at, *key, value=host)

    def _cache(self, node: Node, name: str, host: str, target: str, volume: str) -> None:
        if (there := self.draft.get("caches", name)) is not None:
            known = self.draft.local.get("caches", {}).get(name, there).get("host", "")
            if known != host:
                self.note(node, f"caches.{name}", "another service has another folder for it; a profile has one")
            return
        if host:
            self._hosted(("caches", name), {"path": target}, ("host",), host)
            return
        self.draft.put("caches", name, value={"path": target})
        if volume:
            text = f"Was the volume {volume}; envgen's own starts empty."
            self.draft.remark("caches", name, text=text)
            described = self.volumes.get(volume)
            if described is not None and described.kind == MAP and described.items:
                self.note(
                    described, f"volumes.{volume}", "envgen names its volumes itself: what it holds is not taken over"
                )

    def _host(self, service: _Service, host: str) -> str:
        """A path of this machine as envgen.yaml writes it: from the folder of the project."""
        if host.startswith(("/", "~")):
            return posixpath.normpath(host)
        path = Path(posixpath.normpath(posixpath.join(str(service.base.resolve()), host)))
        here = self.project.resolve()
        text = posixpath.relpath(str(path), str(here))
        return text if text.count("..") < 4 else str(path)

    def _ulimits(self, service: _Service, node: Node, what: str) -> None:
        for name, one in node.items.items():
            limits = [_plain(one, "soft"), _plain(one, "hard")] if one.kind == MAP else [one.text, one.text]
            if not all(re.fullmatch(r"-?[0-9]+", limit) for limit in limits) or not p.matches(p.ULIMIT, name):
                self.note(one, f"{what}.ulimits.{name}", "write numbers: {soft: -1, hard: -1}")
                continue
            made = {"soft": limits[0], "hard": limits[1]}
            if self.draft.get("ulimits", name) not in (None, made):
                self.note(one, f"{what}.ulimits.{name}", "another service has another limit; a profile has one")
            else:
                self.draft.put("ulimits", name, value=made)

    def _health(self, service: _Service, node: Node, what: str) -> None:
        test = node.items.get("test")
        words = [test.text] if test is not None and test.kind not in (MAP, LIST) else _texts(test)
        if _plain(node, "disable").lower() == "true" or words[:1] == ["NONE"]:
            return
        if test is None or not words:
            self.note(node, f"{what}.healthcheck", "it has no test")
            return
        shell = test.kind != LIST or words[0] == "CMD-SHELL"
        words = words[1:] if words[0] in ("CMD", "CMD-SHELL") else words
        text = fill(" ".join(words)).text
        if refused("", text):
            self.note(test, f"{what}.healthcheck", refused("", text))
            return
        made: dict[str, object] = {}
        where = asked(text)
        if where:
            made = {"http": where[0], "port": where[1]}
        else:
            made = {"command": ["sh", "-c", text] if shell else [fill(word).text for word in words]}
        for key in ("interval", "timeout", "start_period"):
            if found := seconds(_plain(node, key)):
                made[key] = found
        if re.fullmatch(r"[1-9][0-9]{0,5}", retries := _plain(node, "retries")):
            made["retries"] = str(min(int(retries), 100))
        self.put(service, "health", value=made)

    def _simple(self, service: _Service, key: str, node: Node, what: str) -> None:
        own, pattern = _SIMPLE[key]
        text = "host" if key == "user" and _OF_CALLER.fullmatch(node.text[:200]) else self.text(node, what)
        text = _ROOT.get(text or "", text) if key == "user" else text
        if text is None or text in ("no", "bridge", "default"):  # as it is without
            return
        if p.matches(pattern, text):
            self.put(service, own, value=text)
        else:
            self.note(node, f"{what}: {text}", p.meaning(pattern))

    def _labels(self, service: _Service, node: Node, what: str) -> None:
        for name, value, one in self.pairs(node, f"{what}.labels"):
            text = self.text(value, f"{what}.labels.{name}", "services", service.name) if value is not None else ""
            if text is None:
                continue
            if why := refused(name, text):
                self.note(one, f"{what}.labels.{name}", why)
            elif p.matches(p.LABEL, name):
                self.put(service, "labels", name, value=text)
            else:
                self.note(one, f"{what}.labels.{name}", p.meaning(p.LABEL))

    def _deploy(self, service: _Service, node: Node, what: str) -> None:
        for key, one in node.items.items():
            inner = one.items if one.kind == MAP else {}
            if key != "resources" or "limits" in inner:
                self.note(one, f"{what}.deploy.{key}", COMPOSE["Service"]["deploy"])

    def _list(self, service: _Service, node: Node, what: str) -> None:
        """Devices and capabilities."""
        is_device = "devices" in service.node.items and service.node.items["devices"] is node
        key, pattern = ("devices", p.DEVICE) if is_device else ("cap_add", p.CAPABILITY)
        for one in node.elements:
            if is_device and one.text.startswith("nvidia.com/gpu"):
                self.draft.put("gpu", value="cdi")
                continue
            text = one.text.removeprefix("CAP_")
            source, _, rest = text.partition(":")
            text = source if is_device and rest == source else text
            if p.matches(pattern, text):
                self.draft.add("services", service.name, key, value=text)
            else:
                self.note(one, f"{what}.{key} {one.text}", p.meaning(pattern))

    def _env_file(self, service: _Service, node: Node, what: str) -> None:
        for one in node.elements if node.kind == LIST else [node]:
            file = _plain(one, "path") if one.kind == MAP else one.text
            there = " (there is no such file)" if "no such" in self._outside(service.base, file) else ""
            why = "not read: its variables go into `env`, keys and tokens by name into `secrets`"
            self.note(one, f"{what}.env_file {file}{there}", why)

    def _ipc(self, service: _Service, node: Node, what: str) -> None:
        if not p.matches(p.IPC, node.text) or self.draft.get("ipc") not in (None, node.text):
            self.note(node, f"{what}.ipc", f"{p.meaning(p.IPC)}, the same for all services")
        else:
            self.draft.put("ipc", value=node.text)

    def _shm(self, service: _Service, node: Node, what: str) -> None:
        text = self.text(node, f"{what}.shm_size", "services", service.name)
        if text is None:
            return
        try:
            ByteSize.parse(text)
        except ValueError as error:
            self.note(node, f"{what}.shm_size", str(error))
            return
        if _plain(service.node, "ipc") == "host":
            self.note(node, f"{what}.shm_size", "has no effect with ipc: host, which shares the machine's /dev/shm")
        else:
            self.put(service, "shm_size", value=text)

    def _gpus(self, chosen: list[_Service]) -> None:
        """Who gets which GPUs."""
        if self.draft.get("gpu") is None:
            self.draft.put("gpu", value="all" if any(one.gpu for one in chosen) else "none")
        for service in chosen:
            if self.draft.get("services", service.name) is None or self.draft.get("gpu") == "none":
                continue
            if not service.gpu and self.draft.get("gpu") == "all":
                self.put(service, "gpu", value=[])
            for device in _devices(service.node):
                ids, count = _texts(device.items.get("device_ids")), _plain(device, "count")
                if not ids and re.fullmatch(r"[1-9][0-9]?", count):
                    ids = [str(number) for number in range(int(count))]
                    self.draft.remark("services", service.name, "gpu", text=f"Was any {count}: the engine chose.")
                if ids:
                    self.put(service, "gpu", value=ids)


def _laid_over(below: Node, over: Node) -> Node:
    """A service on top of the one that it extends: mappings merge, lists are joined, commands are replaced."""
    items = dict(below.items)
    for key, node in over.items.items():
        under = items.get(key)
        if under is not None and under.kind == node.kind == MAP:
            items[key] = _laid_over(under, node)
        elif under is not None and under.kind == node.kind == LIST and key not in ("command", "entrypoint", "test"):
            joined = [*under.elements, *node.elements]
            items[key] = node.with_items({str(number): one for number, one in enumerate(joined)})
        else:
            items[key] = node
    return over.with_items(items)


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


def _one_line(word: str) -> str:
    """A script for a shell without its continued lines; one of several commands stays as it is."""
    lines = [line.strip() for line in word.replace("\\\n", " ").splitlines() if line.strip()]
    return lines[0] if "\n" in word and len(lines) == 1 else word


def seconds(text: str) -> str:
    """A duration of Compose (1m30s) as a profile's."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|m|s)", text[:40])
    total = sum(float(count) * {"h": 3600, "m": 60, "s": 1, "ms": 0.001, "us": 0}[unit] for count, unit in parts)
    return f"{max(1, round(total))}s" if parts else ""
