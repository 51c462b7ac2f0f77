"""One quoting function per language, and the Jinja2 environment that can print nothing else.

Every value of a profile goes through one of these functions into a rendered file. Each returns
``Quoted``, and raises ``ValueError`` for what its language cannot carry.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import yaml

from envgen.binding import JsonObject
from envgen.files import data_dir
from envgen.profile.values import LONGEST


class Quoted(str):
    """Text that was quoted for one language."""

    __slots__ = ()


# A word, flag, path, image or duration that every YAML parser reads as text. None begins with a
# digit and has a colon.
_PLAIN_WORD = re.compile(
    r"(?:[A-Za-z/]|~/|\.\./)(?:[A-Za-z0-9./_-]|:(?=[A-Za-z0-9]))*|--[a-z][a-z0-9-]*|\.\.|[0-9]+(?:s|m|k|ms)"
)
# Words that are not text to YAML 1.1 or 1.2.
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _text(text: str, language: str) -> str:
    """``text``; ValueError for NUL and lone surrogates."""
    if "\0" in text:
        raise ValueError(f"contains NUL, which {language} cannot carry")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError(
            f"contains a lone surrogate, which is not text, so {language} cannot carry it"
        )
    return text


def _one_line(text: str, language: str) -> str:
    _text(text, language)
    if "\n" in text or "\r" in text:
        raise ValueError(f"contains a line break, which {language} cannot carry")
    if len(text.encode()) > LONGEST:
        raise ValueError(
            f"is longer than {LONGEST} bytes, which {language} cannot carry in one line"
        )
    return text


def docker_value(text: str) -> Quoted:
    """A value of ENV, LABEL, ARG or WORKDIR, in double quotes: Docker expands and trims nothing in
    it.
    """
    _one_line(text, "a Dockerfile")
    return Quoted('"' + re.sub(r'([\\"$])', r"\\\1", text) + '"')


def docker_path(text: str) -> Quoted:
    """The path of WORKDIR, in quotes where it needs them."""
    return Quoted(text) if re.fullmatch(r"/[A-Za-z0-9._/-]*", text) else docker_value(text)


def docker_prepend(name: str, text: str) -> Quoted:
    """A value of ENV in front of the variable's present value, if any, with a colon between them."""
    return Quoted(docker_value(text)[:-1] + f'${{{identifier(name)}:+:${identifier(name)}}}"')


def shell_word(text: str) -> Quoted:
    """One word of a POSIX shell command in a RUN line. It begins with a quote where it has ``<<``,
    which Docker would otherwise take for a here-document.
    """
    return Quoted(shlex.quote(_one_line(text, "a RUN line")))


def shell_words(words: Iterable[str]) -> Quoted:
    """Several words of a shell command, separated by blanks."""
    return Quoted(_one_line(" ".join(shell_word(word) for word in words), "a RUN line"))


def shell_each(commands: Iterable[Iterable[str]], *program: str) -> Quoted:
    """``program`` with the arguments of each command, one after the other, each on its own line."""
    return Quoted(" \\\n    && ".join(shell_words((*program, *words)) for words in commands))


def mount_each(paths: Iterable[str]) -> Quoted:
    """The options of RUN that mount files of the project below /run/envgen, each on its own line."""
    return Quoted(
        "".join(
            f"--mount=source={mount_path(path)},target=/run/envgen/{path} \\\n    "
            for path in paths
        )
    )


_PLAIN = re.compile(r"[A-Za-z0-9:/._%~@+,=?&-]+")


def docker_copy(source: str, target: str) -> Quoted:
    """The two places of an ADD or COPY: as they are, or as JSON with escapes where Docker would
    read more in them.
    """
    if all(_PLAIN.fullmatch(one) for one in (source, target)):
        return Quoted(f"{source} {target}")
    words = [
        re.sub(r"([\\$])", r"\\\1", _one_line(one, "a Dockerfile")) for one in (source, target)
    ]
    return Quoted(json.dumps(words))


def checksum(sha256: str) -> Quoted:
    """A SHA-256 in hexadecimal digits."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256")
    return Quoted(sha256)


_UNPRINTED = re.compile(r"[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")  # by YAML; bare in JSON


def as_json(value: object) -> Quoted:
    """A value as JSON, which every YAML parser reads alike: 1e3 stays text."""
    text = json.dumps(value, ensure_ascii=False)
    return Quoted(_UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def docker_line(text: str) -> Quoted:
    """An instruction of the user's own, which ``DockerLine`` has checked; ValueError where it is
    not one line.
    """
    _one_line(text, "a Dockerfile")
    if not re.match(r"(RUN|COPY|ENV|ARG|LABEL) ", text) or text.endswith("\\") or "<<" in text:
        raise ValueError(f"{text!r} is not one line of a Dockerfile")
    return Quoted(text)


def _only(pattern: str, what: str) -> Callable[[str], Quoted]:
    """A function for text that is written unquoted, and must match ``pattern``."""

    def quoted(text: str) -> Quoted:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {what}")
        return Quoted(text)

    return quoted


# A path inside `RUN --mount=...`, whose fields are CSV with variables.
mount_path = _only(
    r"[A-Za-z0-9._/+@-]+",
    "has characters other than letters, digits and ._/+@-, so a build cannot mount it",
)
# An image after FROM, which `ImageRef` has checked.
image_ref = _only(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "is not an image name")
# The name of a variable, a stage, a profile.
identifier = _only(r"[A-Za-z_][A-Za-z0-9_.-]*", "is not a plain name")


def comment(text: str) -> Quoted:
    """Text behind ``#``, in ASCII; characters that could end the line are escaped."""
    return Quoted(
        _text(text, "a comment").encode("ascii", "backslashreplace").decode().translate(_CONTROLS)
    )


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


class Interpolated(str):
    """Text in Compose's own language: ``${NAME:-default}``. In all other text of a Compose file a
    dollar is doubled.
    """


class _Composing(yaml.SafeDumper):
    """Writes YAML that every parser reads alike: quotes all text that is not plainly a word, such
    as 1e3.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """Text, quoted where necessary."""
        plain = _PLAIN_WORD.fullmatch(value) is not None and value.lower() not in _YAML_WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Composing.add_representer(
    str, lambda self, text: self.text(_text(text, "a Compose file").replace("$", "$$"))
)
_Composing.add_representer(Interpolated, _Composing.text)


def compose_value(value: object) -> Quoted:
    """A value of a Compose file on one line, in ASCII."""
    text = yaml.dump(
        value, Dumper=_Composing, default_flow_style=True, sort_keys=False, width=10**6
    )
    return Quoted(text.removesuffix("\n").removesuffix("\n..."))


def compose_variable(
    name: str, default: str | None, *, reason: str = "", after: str = ""
) -> Interpolated:
    """``${NAME:-default}``, or ``${NAME:?reason}`` without a default, and ``after``.

    A default has no escapes in Compose: ValueError for its special characters.
    """
    kind, text = (":?", reason) if default is None else (":-", default)
    return Interpolated(f"${{{identifier(name)}{kind}{_default(text)}}}{_default(after)}")


def _default(text: str) -> str:
    _one_line(text, "a default of a Compose variable")
    special = re.search(r"[${}]", text)
    if special:
        raise ValueError(
            f"contains {special.group()!r}, which a default of a Compose variable cannot carry"
        )
    return text


@dataclass(frozen=True)
class Pair:
    """A variable or label. ``prepend``: the base image's value follows, after a colon."""

    name: str
    value: str
    prepend: bool = False


def docker_pairs(pairs: Iterable[Pair]) -> Quoted:
    """``NAME="value"`` of an ENV or LABEL instruction, each on its own line."""
    values = [
        docker_prepend(one.name, one.value) if one.prepend else docker_value(one.value)
        for one in pairs
    ]
    return Quoted(
        " \\\n    ".join(
            f"{identifier(one.name)}={value}" for one, value in zip(pairs, values, strict=True)
        )
    )


def assignment(pair: Pair) -> Quoted:
    """``NAME='value'`` as an argument of env(1)."""
    return Quoted(f"{identifier(pair.name)}={shell_word(pair.value)}")


FILTERS: dict[str, Callable[..., Quoted]] = {
    "docker_value": docker_value,
    "docker_path": docker_path,
    "docker_pairs": docker_pairs,
    "assignment": assignment,
    "sh": shell_word,
    "sh_words": shell_words,
    "sh_each": shell_each,
    "mount": mount_path,
    "mount_each": mount_each,
    "docker_line": docker_line,
    "docker_copy": docker_copy,
    "checksum": checksum,
    "json": as_json,
    "yaml": compose_value,
    "image": image_ref,
    "name": identifier,
    "comment": comment,
}


def _only_quoted(value: Any) -> Any:
    """The ``finalize`` of Jinja: quoted text and numbers; TypeError for other values."""
    if isinstance(value, (Quoted, int)) or (isinstance(value, str) and not value):
        return value
    raise TypeError(f"a template prints {value!r}, which was not quoted")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        finalize=_only_quoted,
        trim_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        # each template is printed once or twice: looking for constants costs more than they do
        optimized=False,
    )
    environment.filters.update(FILTERS)
    return environment


def render(template: str, context: JsonObject) -> str:
    """The text of ``templates/<template>`` for ``context``."""
    return _environment().get_template(template).render(context)
