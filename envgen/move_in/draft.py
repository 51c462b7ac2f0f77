"""The project file that is being made: values, remarks, what found no place; and its text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml

from envgen.profile.tree import Node
from envgen.profile.values import CudaArchList
from envgen.redact import is_secret_value, redact_secrets, secret_in, secret_like
from envgen.render.quote import Quoting
from envgen.text import shorten, visible

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Unplaced:
    """What the project file has no place for, and what to do about it. No value of a variable is in it."""

    file: str
    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.why}"


@dataclass
class Draft:
    """One profile. ``values``: for envgen.yaml; ``local``: for envgen.local.yaml, what only this machine has."""

    name: str
    profile: str
    values: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    remarks: dict[Path_, list[str]] = field(default_factory=dict)
    unplaced: list[Unplaced] = field(default_factory=list)
    origins: dict[str, Node | tuple[str, int]] = field(default_factory=dict)  # by key, of a list's item by key=value
    services: dict[str, str] = field(default_factory=dict)  # as the Compose file calls it -> as the profile does

    def put(self, *path: str, value: Any, at: Node | tuple[str, int] | None = None, local: bool = False) -> None:
        """Set one value, unless it looks like a secret; mappings on the way are made. ``at``: where it is from."""
        if at is not None:
            if why := refused(path[-1], value):
                self.note(at, ".".join(path), why)
                return
            self.origins[".".join(path)] = at
        inner = self.local if local else self.values
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value

    def get(self, *path: str) -> Any:
        """The value there; None where there is none."""
        at: Any = self.values
        for part in path:
            at = at.get(part) if isinstance(at, dict) else None
        return at

    def add(self, *path: str, value: str, at: Node | tuple[str, int] | None = None) -> None:
        """Append to a list, each value once."""
        found = self.get(*path) or []
        if value not in found:
            self.put(*path, value=[*found, value], at=at)
            if at is not None:
                self.origins[f"{'.'.join(path)}={value}"] = at

    def drop(self, key: str, why: str) -> bool:
        """Take out what the loader refuses, or the nearest thing around it, and list it. False: there is nothing."""
        key = re.sub(r"(\.(command|args\..*))\[\d+\]$", r"\1", key)  # a command without one of its words is another
        chains = [list(_chain(values, key)) for values in (self.values, self.local)]
        most = max(map(len, chains))
        for chain in chains:
            for holder, name in reversed(chain if len(chain) == most else ()):
                value = holder.pop(name)
                key = f"{key.rpartition('[')[0]}={value}" if isinstance(holder, list) else key
                if holder:  # else its own key goes, too
                    break
        what = key.replace("=", ": ", 1)
        while key not in self.origins and key:
            key = key[: max(map(key.rfind, ".[="), default=0) if set(key) & set(".[=") else 0]
        self.note(self.origins.get(key) or ("envgen.yaml", 1), what, why)
        return most > 0

    def remark(self, *path: str, text: str) -> None:
        """A comment above a key."""
        found = self.remarks.setdefault(path, [])
        if text not in found:
            found.append(text)

    def defaulted(self, *path: str, names: Iterable[str]) -> None:
        """A comment above a key: its text had these variables."""
        for name in names:
            self.remark(*path, text=f"Had ${{{name}}}: what stands here is the default.")

    def note(self, at: Node | tuple[str, int], what: str, why: str) -> None:
        """List something that has no place; each once."""
        file, line = at if isinstance(at, tuple) else (at.source.label, at.key_line or at.line)
        made = Unplaced(visible(file), line, redact_secrets(shorten(visible(what), 160)), redact_secrets(why))
        if made not in self.unplaced:
            self.unplaced.append(made)


def _chain(values: Any, key: str) -> Iterator[tuple[Any, Any]]:
    """Each mapping or list on the way to ``key`` (as in services.x.ports[0]) with the name in it, as far as it goes."""
    while key and isinstance(values, (dict, list)):
        if isinstance(values, list):
            number, _, key = key[1:].partition("]")
            name: Any = int(number) if number.isdecimal() and int(number) < len(values) else None
        else:
            name = max((n for n in values if re.match(rf"{re.escape(n)}([.\[]|$)", key)), key=len, default=None)
            key = key[len(name or "") :]
        if name is None:
            return
        key = key.removeprefix(".")
        yield values, name
        values = values[name]


def refused(name: str, value: Any) -> str:
    """Why ``value`` may not stand in the project file under ``name``; empty when it may."""
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else (("", one) for one in value)
        return next(filter(None, (refused(key, one) for key, one in inner)), "")
    value = str(value)
    if secret_in(value) or (secret_like(name.replace("-", "_")) and is_secret_value(value)):
        return "looks like a secret, so its value was not copied"
    return ""


def text_of(draft: Draft, sources: str) -> str:
    """The whole of envgen.yaml."""
    head = [
        "# yaml-language-server: $schema=./envgen.schema.json",
        "#",
        f"# Written by `envgen init --from` from {visible(sources)}. It is yours: edit it.",
        "# Every key is described in docs/profile.md; `envgen config --explain` shows where each value comes from.",
        "version: 1",
        f"name: {draft.name}",
        f"default_profile: {draft.profile}",
        "",
        "profiles:",
        f"  {draft.profile}:",
    ]
    body = list(_profile(draft.values, draft.remarks))
    tail = []
    if draft.unplaced:
        tail = ["", "# Not placed: what this file has no key for, by the line that it stands in."]
        for one in draft.unplaced:
            tail += [f"#   {one.file}:{one.line}: {one.what}", f"#       {one.why}"]
    return "\n".join([*head, *body, *tail]) + "\n"


def local_text(draft: Draft) -> str:
    """The whole of envgen.local.yaml."""
    head = ["# Facts about this machine; git ignores the file. Same shape as envgen.yaml.", "version: 1"]
    body = ["profiles:", f"  {draft.profile}:", *_profile(draft.local, {})] if draft.local else []
    return "\n".join([*head, *body]) + "\n"


class _Number(str):
    """Of a variable or a flag, a number is the text of itself."""


class _Drafting(Quoting):
    pass


_Drafting.add_representer(
    list, lambda self, items: self.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=len(str(items)) < 90)
)
_Drafting.add_representer(
    _Number, lambda self, text: self.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)
)


def _profile(values: Mapping[str, Any], remarks: Mapping[Path_, list[str]]) -> Iterator[str]:
    """The lines of a profile, with the remarks above their keys."""
    text = yaml.dump(_with_numbers(values), Dumper=_Drafting, sort_keys=False, width=10**6)
    path: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"( *)([\w.-]+):", line):
            path[len(found[1]) // 2 :] = [found[2]]
            yield from (f"    {found[1]}# {visible(remark)}" for remark in remarks.get(tuple(path), ()))
        yield f"    {line}"


def _with_numbers(value: Any, loose: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(one, loose or key in ("env", "args", "labels")) for key, one in value.items()}
    is_number = loose and isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    return _Number(value) if is_number else value


_DOLLAR = "\0"  # stands for one that begins no variable
LONGEST = 100_000  # characters that variables may add to a text
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*))?\}|([A-Za-z_]\w*))")


@dataclass(frozen=True)
class Filled:
    """``defaults``: names whose default was taken; ``missing``: names without one, which stay as ${NAME}."""

    text: str
    defaults: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def fill(text: str, values: Mapping[str, str] = MappingProxyType({})) -> Filled:
    """``text`` with defaults for its variables. No variable of this machine is looked at."""
    defaults: list[str] = []
    missing: list[str] = []
    added = 0

    def one(match: re.Match[str]) -> str:
        nonlocal added
        name, kind, rest = match[1] or match[4], match[2] or "", match[3] or ""
        if name in values and added <= LONGEST:
            made = rest if kind.endswith("+") else values[name]
            added += len(made)
            return made
        if kind.endswith("-"):
            defaults.append(name)
            return rest
        if kind.endswith("+"):
            return ""
        missing.append(name)
        return f"{_DOLLAR}{{{name}}}"

    made = text.replace("$$", _DOLLAR)
    for _ in range(5):  # a default may have variables of its own
        made, count = _VARIABLE.subn(one, made)
        if not count:
            break
    return Filled(made.replace(_DOLLAR, "$"), tuple(defaults), tuple(missing))


_GROUPS = (
    (r"VLLM_.*|RAY_.*", "vllm"),
    (r"FLASHINFER_.*", "flashinfer"),
    (r"(NCCL|GLOO|UCX|OMPI|TP|MN|MASTER)_.*", "network"),
    (r"(TORCH|PYTORCH|TRITON|CUDA)_?.*", "torch"),
    (r"(HF|HUGGING_?FACE|TRANSFORMERS|SAFETENSORS)_.*", "hugging_face"),
)
_NUMBERS = {"MAX_JOBS": "max_jobs", "FLASHINFER_NVCC_THREADS": "nvcc_threads", "NVCC_THREADS": "nvcc_threads"}
_ARCH = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST")


def place(draft: Draft, name: str, value: str, at: Node | tuple[str, int], service: str = "") -> None:
    """Put a variable where the profile has it. ``service``: of this one alone."""
    if _derived(draft, name, value):
        return
    if why := refused(name, value):
        secret(draft, name)
        draft.note(at, name, f"{why}; `secrets` takes it from your shell, or from .env beside envgen.yaml")
    elif name not in (draft.get("secrets") or ()):
        group = next((group for pattern, group in _GROUPS if re.fullmatch(pattern, name)), "settings")
        path = ("services", service, "env") if service else ("env", group)
        draft.put(*path, name, value=value, at=at)


def secret(draft: Draft, name: str) -> None:
    """A variable whose value comes from the shell when a service starts."""
    draft.add("secrets", value=name)


def _derived(draft: Draft, name: str, value: str) -> bool:
    """Whether the key that decides this variable could be written from its value."""
    if name in _ARCH:
        text = " ".join(part for part in re.split(r"[\s;,]+", value.replace("+PTX", "")) if part)
        try:
            CudaArchList.parse(text)
        except ValueError:
            return False
        if name == _ARCH[0] or draft.get("cuda", "arch_list") is None:  # FlashInfer's is the stricter one
            draft.put("cuda", "arch_list", value=text)
        return bool(text == draft.get("cuda", "arch_list"))
    if name == "PYTHONPATH":
        parts = [posixpath.normpath(part) for part in value.split(":") if part.startswith("/")]
        for part in parts:
            draft.add("python_path", value=part)
        return bool(parts)
    if name == "CUDA_HOME":
        draft.put("cuda", "home", value=value)
    elif name in _NUMBERS and value.isdecimal():
        draft.put("build", _NUMBERS[name], value=int(value))
    else:
        # What envgen sets to the same anyway.
        return (name, value) == ("NVIDIA_VISIBLE_DEVICES", "all") or (
            name.startswith("TRITON_PTXAS") and value.endswith("/bin/ptxas")
        )
    return True
