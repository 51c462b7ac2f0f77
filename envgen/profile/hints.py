"""What to write instead of a value that is refused: each hint is accepted when it is followed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from envgen.profile import shape as shapes
from envgen.profile.model import Mount
from envgen.profile.shape import Field, Shape, fields_of
from envgen.profile.tree import TEXT, Node, plain_kind

_PLAIN = re.compile(r"[A-Za-z0-9_./=@+-]+")
_SHELL = re.compile(r"[&|;<>`$*()]")


_OWN_FILE = "not offered here: write it into a Compose file of yours, and name that in `compose:` of the profile"
_OWN_FILE_ONLY = (
    "cap_drop", "configs", "cpus", "dns", "extra_hosts", "group_add", "hostname", "init", "logging", "mem_limit",
    "mem_reservation", "memswap_limit", "oom_score_adj", "pid", "pids_limit", "pull_policy", "read_only",
    "security_opt", "stop_grace_period", "stop_signal", "sysctls", "userns_mode",
)  # fmt: skip
# Keys of Compose that are spelled otherwise here, by the record in which people write them.
COMPOSE: Mapping[str, Mapping[str, str]] = {
    "Service": {
        "environment": "Compose's `environment` is `env: {NAME: value}`",
        "env_file": "write `env: {NAME: value}`, or `secrets: [NAME]` in the profile for a variable of your shell",
        "volumes": "write `mounts: {NAME: HOST:CONTAINER:ro}` for files of yours; `caches` of the profile for volumes",
        "tmpfs": "write `caches: {NAME: {path: /x}}` in the profile: a named volume",
        "depends_on": "not needed: `envgen up` waits until a service is ready; start the other one first",
        "entrypoint": "write the program first in `command`",
        "healthcheck": "Compose's `healthcheck` is `health: {http: /health}`",
        "network_mode": "write `network: host`",
        "networks": _OWN_FILE,
        "privileged": "not offered: name what it needs in `devices` and `cap_add`",
        "build": "the image is made from the profile's `base`, `apt`, `pip` and `sources`",
        "image": "all services run the profile's image: `image` and `base.image` of the profile",
        "platform": "write `base: {platform: linux/arm64}` in the profile",
        "expose": "not needed: `ports` publishes a port, and services of one profile reach each other without",
        "deploy": "write `gpu: [0]` for GPUs, `needs_memory` for memory",
        "gpus": "write `gpu: [0]`, or `gpu` in the profile for all of them",
        "runtime": "write `gpu: all` in the profile for the NVIDIA runtime",
        "stdin_open": "write `interactive: true`",
        "tty": "write `interactive: true`",
        "ipc": "write `ipc: host` in the profile",
        "ulimits": "write `ulimits: {memlock: {soft: -1, hard: -1}}` in the profile",
        "secrets": "write `secrets: [NAME]` in the profile: variables of your shell",
        "profiles": "`envgen up SERVICE` starts exactly that service",
        "extends": "a profile extends another: `extends: NAME` in the profile",
        **dict.fromkeys(_OWN_FILE_ONLY, _OWN_FILE),
    },
    "Profile": {
        "environment": "write `env: {GROUP: {NAME: value}}`, or `env` in a service",
        "env_file": "write `env: {GROUP: {NAME: value}}`, or `secrets: [NAME]` for a variable of your shell",
        "volumes": "write `caches: {NAME: {path: /x}}` for named volumes, `mounts` in a service for files of yours",
        "networks": _OWN_FILE,
        "configs": _OWN_FILE,
        "include": "write `compose: FILE` in a profile",
        "command": "it belongs into a service: `services: {NAME: {command: [...]}}`",
        "ports": "it belongs into a service: `services: {NAME: {ports: [...]}}`",
        "mounts": "it belongs into a service: `services: {NAME: {mounts: {...}}}`",
    },
}


def text_for_record(cls: Any, kind: str) -> str:
    """How a record that has a short form is written."""
    return f"write it like {cls.EXAMPLE}" if kind == TEXT and hasattr(cls, "EXAMPLE") else ""


def list_for_mapping(inner: Shape | None, node: Node) -> str:
    """For a list as in Compose where entries have names here."""
    texts = [child.text for child in node.elements if child.kind == TEXT]
    if inner is not None and inner.type is Mount and texts:
        return f"give each a name: {{first: {spelled(texts[0])}}}"
    if inner is not None and inner.type is str and all("=" in text for text in texts) and texts:
        return "write it as a mapping: {" + ", ".join(": ".join(map(spelled, t.split("=", 1))) for t in texts) + "}"
    return ""


def spelled(text: str) -> str:
    """``text`` as YAML reads it back, also inside a list."""
    plain = _PLAIN.fullmatch(text) and plain_kind(text) == TEXT and not text.startswith("-")
    return text if plain else json.dumps(text, ensure_ascii=False)


def for_number(type_: Any, text: str) -> str:
    """How a number is written where a value such as 127.0.0.1:8000:8000 or 30s is expected."""
    for value in (text, f"127.0.0.1:{text}:{text}", f"{text}s"):
        try:
            type_.parse(value)
        except ValueError:
            continue
        return f"quote it: {spelled(value)}" if value == text else f"write {spelled(value)}"
    return f"write it like {type_.EXAMPLE}"


def is_command(path: str) -> bool:
    """Whether the value at ``path`` is a command, one word an item."""
    return re.search(r"(^|\.)(command|prepare)(\[\d+\])?$", path) is not None


def as_list(inner: Shape, text: str, path: str) -> str:
    """``text`` as the list that was expected: the words of a command, else one item."""
    items = [text]
    if is_command(path):
        try:
            items = ["sh", "-c", text] if _SHELL.search(text) else shlex.split(text)
        except ValueError:  # a quote that is never closed
            return "write it as a list, one word an item"
    elif inner.kind == shapes.VALUE and plain_kind(text) != TEXT:
        return for_number(inner.type, text).replace("write ", "write it as a list: [") + "]"
    return f"write it as a list: [{', '.join(map(spelled, items))}]"


def one_line(text: str, path: str) -> str:
    """For a value with a line break."""
    if "\n" not in text:
        return ""
    return "separate the commands by `; `, or put them into a script" if is_command(path) else "write it in one line"


def required(field: Field) -> str:
    """What to write for a key that is missing: its own required keys with an example each, else what it is."""
    if field.shape.kind != shapes.RECORD:
        return field.key.doc
    inner = [one for one in fields_of(field.shape.type).values() if one.required]
    return f"write `{field.name}: {{{', '.join(f'{one.name}: {_example(one)}' for one in inner)}}}`"


def _example(field: Field) -> str:
    return str(field.shape.type.EXAMPLE) if field.shape.kind == shapes.VALUE else "..."
