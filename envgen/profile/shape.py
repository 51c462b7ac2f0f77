"""Declares fields of the model: their shapes, and patterns of texts.

A field's shape comes from its annotation, for binding, JSON Schema and docs. Annotations are
strings (``from __future__ import annotations``) in a small language: a name, ``tuple[X, ...]``,
``Mapping[str, X]`` and ``| None``. Parsing them here takes microseconds; ``typing.get_type_hints``
compiles and evaluates each one.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache
from typing import Any

_KEY = "envgen.key"


@dataclasses.dataclass(frozen=True)
class Key:
    """The declaration of a field, besides its type and default.

    ``names`` = regular expression for the keys of a mapping; ``item`` = for each string of a list
    (or the string itself); ``low`` and ``high`` bound a number.
    """

    doc: str
    names: str = ""
    item: str = ""
    low: int | None = None
    high: int | None = None


def key(doc: str, default: Any = MISSING, **more: Any) -> Any:
    """A documented field that a project file may set; without ``default`` the key is required.
    ``more``: of Key.
    """
    metadata = {_KEY: Key(doc, **more)}
    if isinstance(
        default, Mapping
    ):  # the standard library wants a factory for what can't be hashed
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Pattern(str):
    """A regular expression, and its meaning in hints."""

    meaning: str

    def __new__(cls, pattern: str, meaning: str) -> Pattern:
        new = super().__new__(cls, pattern)
        new.meaning = meaning
        return new


# Sources, services, caches, profiles. Single underscores only: two separate the parts of an
# ENVGEN_... variable.
NAME = Pattern(
    r"[a-z](_?[a-z0-9]){0,39}", "small letters and digits, with single underscores between them"
)


def as_profile_name(text: str) -> str:
    """The NAME of what is called ``text``: of the recipe ``qwen3.6-35b-a3b``, ``qwen3_6_35b_a3b``.

    A NAME stays as it is. Profiles keep to NAME, since dots separate the parts of a rendered file's
    name and Compose takes none in a project's.
    """
    word = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40].strip("_")
    return word if word[:1].isalpha() else f"m_{word}"[:40].strip("_")


# What is compared with: llama.cpp, SGLang 0.5.
TITLE = Pattern(r"[A-Za-z0-9][A-Za-z0-9 ,._+#/-]{0,59}", "a name such as llama.cpp")
# Machines.
NODE = Pattern(
    r"[a-z0-9](-?[a-z0-9]){0,39}", "lowercase letters and digits, with single dashes between them"
)
# Compose's project names and image names both accept it.
PROJECT_NAME = Pattern(
    r"[a-z0-9]([_-]?[a-z0-9]){0,39}",
    "lowercase letters and digits, with single dashes or underscores between them",
)
ENV_NAME = Pattern(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and underscores, not a digit first")
# Not with a dash at the end, which tells apt-get to remove the package.
APT_NAME = Pattern(
    r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](=[A-Za-z0-9.+:~-]*[A-Za-z0-9.+:~])?",
    "a Debian package, such as git or git=1:2.47",
)
_SPECIFIER = r"(==|>=|<=|~=|!=|<|>) ?[A-Za-z0-9.!+_*-]+"
REQUIREMENT = Pattern(
    rf"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?( ?{_SPECIFIER}( ?, ?{_SPECIFIER})*)?",
    "a requirement, such as ninja or cmake>=3.26",
)
FLAG = Pattern(
    r"[a-zA-Z][a-zA-Z0-9._-]*", "a flag by its long name, without dashes, such as max-model-len"
)
SHA256 = Pattern(r"[0-9a-f]{64}", "64 hexadecimal digits, small letters")
MODULE = Pattern(r"[A-Za-z_][0-9A-Za-z_]*", "the name after `import`")
# No part may begin with a dash, which git or ssh would take for an option.
GIT_URL = Pattern(
    r"(https?|git|ssh)://(?!-)([^\s/@]*@)?(?!-)[^\s]+|file://[^\s]+"
    r"|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!-)[^\s]+",
    "an address such as https://host/path.git or git@host:path.git",
)
GIT_REF = Pattern(
    r"(?!.*(\.\.|//))[A-Za-z0-9_][A-Za-z0-9._/-]*(?<![/.])(?<!\.lock)", "a branch, tag or commit"
)
HTTP_URL = Pattern(r"https?://[^\s]+", "an address such as https://host/path")
INDEX_URL = Pattern(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~%+,=:/-]*)?",
    "an address without a login, a query and variables, such as https://host/simple",
)
# A folder inside a repository: no part begins with a dot or a dash.
INNER_PATH = Pattern(
    r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*",
    "a folder such as 3rdparty/cutlass",
)
USER = Pattern(r"host|root|[0-9]{1,9}(:[0-9]{1,9})?", "host, root, or numbers: UID or UID:GID")
RESTART = Pattern(
    r"no|always|unless-stopped|on-failure:[1-9][0-9]?", "no, on-failure:N, unless-stopped or always"
)
FIGURE = Pattern(
    r"decode|prefill|first_token|tg[1-9][0-9]{0,6}|pp[1-9][0-9]{0,6}",
    "decode, prefill, first_token, tgN or ppN",
)
WEDGED = Pattern(r"restart|tell|off", "restart, tell or off")
IPC = Pattern(r"private|host|shareable", "private, host or shareable")
CONTEXT = Pattern(
    r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "the name of a Docker context, as `docker context ls` lists it"
)
_BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
IPV4 = Pattern(rf"(?!0){_BYTE}(\.{_BYTE}){{3}}", "an IPv4 address such as 192.168.177.11")
INTERFACE = Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", "a network interface such as enp1s0f1np1")
DOCKERFILE = Pattern(
    r"Dockerfile(\.[A-Za-z0-9_-][A-Za-z0-9._-]*)?", "Dockerfile, or Dockerfile. and a word"
)
DISTRIBUTION = Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name after `pip install`")
URL_PATH = Pattern(
    r"/([^\s/][^\s]*)?", "a path such as /health"
)  # two slashes first would name another host
# Hugging Face: owner/name, without "--" and "..", which its cache gives a meaning of their own.
HUB_REPO = Pattern(
    r"(?!.*(--|\.\.))[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}",
    "a repository such as openai/gpt-oss-120b",
)
HUB_REVISION = Pattern(
    r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", "a branch, tag or commit of the repository"
)
NETWORK = Pattern(r"host", "host; unset is a network of the profile's own")
HUB_IGNORE = Pattern(r"[A-Za-z0-9*?_.\[\]/-]+", "a file name with * and ?, such as original/*")
ULIMIT = Pattern(r"[a-z]+", "the name of a limit, such as memlock")
PROGRAM = Pattern(r"[A-Za-z0-9._/-]+", "a program such as python3")
COMMAND = Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "the name of a command")


def matches(pattern: str, text: str) -> bool:
    """True when the whole of ``text`` matches ``pattern``."""
    return re.fullmatch(pattern, text) is not None


def meaning(pattern: str) -> str:
    """The hint for a text that does not match."""
    return (
        f"write {pattern.meaning}" if isinstance(pattern, Pattern) else f"it must match {pattern}"
    )


SCALAR = "scalar"
ENUM = "enum"
VALUE = "value"
RECORD = "record"
SEQUENCE = "sequence"
MAPPING = "mapping"
ARG = "arg"


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a value in the file."""

    kind: str
    type: Any = None  # str, int or bool; an Enum; a value type; a record class
    inner: Shape | None = None  # of a sequence's items, of a mapping's values


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record."""

    name: str
    shape: Shape
    key: Key
    default: Any

    @property
    def required(self) -> bool:
        return self.default is MISSING


_SCALARS = {"str": str, "int": int, "bool": bool}


@cache
def fields_of(cls: Any) -> dict[str, Field]:
    """The keys of a record class that a file may set, by name; empty for a class that has none."""
    fields = {}
    module = sys.modules[cls.__module__]
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        key = field.metadata.get(_KEY)
        if not key:
            continue
        shape = _shape(str(field.type).removesuffix(" | None"), module)
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        fields[field.name] = Field(field.name, shape, key, default)
    return fields


def _shape(text: str, module: Any) -> Shape:
    """The shape of an annotation; ``module``: of the class, with all names in it."""
    if text in _SCALARS:
        return Shape(SCALAR, _SCALARS[text])
    if text.startswith("tuple["):
        return Shape(SEQUENCE, inner=_shape(text[len("tuple[") : -len(", ...]")], module))
    if text.startswith("Mapping[str, "):
        return Shape(MAPPING, inner=_shape(text[len("Mapping[str, ") : -1], module))
    if text == "ArgValue":
        return Shape(ARG)
    cls = getattr(module, text)
    if isinstance(cls, type) and issubclass(cls, Enum):
        return Shape(ENUM, cls)
    return Shape(RECORD if fields_of(cls) else VALUE, cls)
