"""One quoting function per language, and the Jinja2 environment that can print nothing else.

Nothing from a profile reaches a rendered file but through one of these functions. Each returns ``Quoted``, and raises
``ValueError`` with a reason for what its language cannot carry.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import yaml

from envgen.files import data_dir
from envgen.profile.values import LONGEST


class Quoted(str):
    """Text that is inert in the language that it was quoted for."""

    __slots__ = ()


_PLAIN_WORD = re.compile(r"(?:[A-Za-z/]|~/)[A-Za-z0-9./_-]*")
# Words that YAML 1.1 or 1.2 readers take for something else than text.
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _text(text: str, language: str) -> str:
    """Refuse what no file or process can carry at all: NUL, lone surrogates."""
    if "\0" in text:
        raise ValueError(f"contains NUL, which {language} cannot carry")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError(f"contains a lone surrogate, which is not text, so {language} cannot carry it")
    return text


def _one_line(text: str, language: str) -> str:
    _text(text, language)
    if "\n" in text or "\r" in text:
        raise ValueError(f"contains a line break, which {language} cannot carry")
    if len(text.encode()) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} bytes, which {language} cannot carry in one line")
    return text


def docker_value(text: str) -> Quoted:
    """A value of ENV, LABEL, ARG or WORKDIR, in double quotes: Docker expands nothing in it and trims nothing of it."""
    _one_line(text, "a Dockerfile")
    return Quoted('"' + re.sub(r'([\\"$])', r"\\\1", text) + '"')


def docker_prepend(name: str, text: str) -> Quoted:
    """A value of ENV that is in front of what the variable has already, if anything, with a colon between them."""
    return Quoted(docker_value(text)[:-1] + f'${{{identifier(name)}:+:${identifier(name)}}}"')


def shell_word(text: str) -> Quoted:
    """One word of a POSIX shell command inside RUN. The line belongs to the Dockerfile first, so it stays one line.

    A quoted word begins with a quote, so Docker does not mistake ``<<`` inside it for a here-document.
    """
    return Quoted(shlex.quote(_one_line(text, "a RUN line")))


def shell_words(words: Iterable[str]) -> Quoted:
    """Several words of a shell command, separated by blanks."""
    return Quoted(_one_line(" ".join(shell_word(word) for word in words), "a RUN line"))


def shell_each(commands: Iterable[Iterable[str]], *program: str) -> Quoted:
    """``program`` with the arguments of each command, one after the other, each on its own line."""
    return Quoted(" \\\n    && ".join(shell_words((*program, *words)) for words in commands))


def mount_each(paths: Iterable[str]) -> Quoted:
    """The options of RUN that mount files of the project where its programs look for them, each on its own line."""
    return Quoted("".join(f"--mount=source={mount_path(path)},target=/run/envgen/{path} \\\n    " for path in paths))


def docker_line(text: str) -> Quoted:
    """An instruction of the user's own, as it is. ``DockerLine`` has checked it; what would leave its line is refused
    once more."""
    _one_line(text, "a Dockerfile")
    if not re.match(r"(RUN|COPY|ENV|ARG|LABEL) ", text) or text.endswith("\\") or "<<" in text:
        raise ValueError(f"{text!r} is not one line of a Dockerfile")
    return Quoted(text)


def _only(pattern: str, what: str) -> Callable[[str], Quoted]:
    """Text written unquoted, so it must match ``pattern``."""

    def quoted(text: str) -> Quoted:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {what}")
        return Quoted(text)

    return quoted


# A path inside `RUN --mount=...`, whose fields are CSV with variables.
mount_path = _only(
    r"[A-Za-z0-9._/+@-]+", "has characters other than letters, digits and ._/+@-, so no build can mount it"
)
# An image after FROM. `ImageRef` has checked it; what Docker would expand is refused once more.
image_ref = _only(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "is not an image name")
# The name of a variable, a stage, a profile.
identifier = _only(r"[A-Za-z_][A-Za-z0-9_.-]*", "cannot stand as a bare name")


def comment(text: str) -> Quoted:
    """Text behind ``#``, ASCII only: what some reader could treat as a line break is escaped."""
    return Quoted(_text(text, "a comment").encode("ascii", "backslashreplace").decode().translate(_CONTROLS))


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


class Quoting(yaml.SafeDumper):
    """Writes YAML that every reader parses alike: all text that is not plainly a word, such as 1e3, is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """Quoted where it must be."""
        plain = _PLAIN_WORD.fullmatch(value) is not None and value.lower() not in _YAML_WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


Quoting.add_representer(str, Quoting.text)


class Interpolated(str):
    """Text in Compose's own language: ``${NAME:-default}``. In all other text of a Compose file a dollar is doubled."""


class _Merge(str):
    pass


MERGE = _Merge("<<")  # the key for mappings whose keys are taken over; of several the first is the strongest


class _Composing(Quoting):
    """What is at the top below ``x-NAME``, and in other places too, is there an alias of the anchor NAME."""

    ignore_aliases = yaml.SafeDumper.ignore_aliases

    def serialize(self, node: Any) -> None:
        self.names = {id(value): key.value.removeprefix("x-") for key, value in node.value}
        super().serialize(node)

    def generate_anchor(self, node: Any) -> str:
        return str(self.names[id(node)])

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Composing.add_representer(str, lambda self, text: self.text(_text(text, "a Compose file").replace("$", "$$")))
_Composing.add_representer(Interpolated, Quoting.text)
_Composing.add_representer(type(None), lambda self, _none: self.represent_scalar("tag:yaml.org,2002:null", ""))
_Composing.add_representer(_Merge, lambda self, key: self.represent_scalar("tag:yaml.org,2002:merge", key))


def compose_text(head: Iterable[str], document: Mapping[str, Any]) -> str:
    """A Compose file, ASCII only, with the lines ``head`` as a comment; a blank line before each part."""
    written = yaml.dump(document, Dumper=_Composing, sort_keys=False, allow_unicode=False, width=10**6)
    lines = "".join(f"# {comment(line)}".rstrip() + "\n" for line in head)
    return lines + re.sub(r"(?m)^(?=(x-[^ ]*|services|volumes|secrets):)", "\n", written)


def compose_variable(name: str, default: str | None, *, reason: str = "", after: str = "") -> Interpolated:
    """``${NAME:-default}``, or ``${NAME:?reason}`` where there is no default; ``after`` follows it as it is.

    A default goes into Compose's own little language, which has no escapes: its special characters are refused.
    """
    kind, text = (":?", reason) if default is None else (":-", default)
    return Interpolated(f"${{{identifier(name)}{kind}{_default(text)}}}{_default(after)}")


def _default(text: str) -> str:
    _one_line(text, "a default of a Compose variable")
    found = re.search(r"[${}]", text)
    if found:
        raise ValueError(f"contains {found.group()!r}, which a default of a Compose variable cannot carry")
    return text


@dataclass(frozen=True)
class Pair:
    """A variable or label. ``prepend``: what the base image has for it follows, behind a colon."""

    name: str
    value: str
    prepend: bool = False


def docker_pairs(pairs: Iterable[Pair]) -> Quoted:
    """``NAME="value"`` of an ENV or LABEL instruction, each on its own line."""
    values = [docker_prepend(one.name, one.value) if one.prepend else docker_value(one.value) for one in pairs]
    return Quoted(" \\\n    ".join(f"{identifier(one.name)}={value}" for one, value in zip(pairs, values, strict=True)))


def assignment(pair: Pair) -> Quoted:
    """``NAME='value'`` as an argument of env(1)."""
    return Quoted(f"{identifier(pair.name)}={shell_word(pair.value)}")


FILTERS: dict[str, Callable[..., Quoted]] = {
    "docker_value": docker_value,
    "docker_pairs": docker_pairs,
    "assignment": assignment,
    "sh": shell_word,
    "sh_words": shell_words,
    "sh_each": shell_each,
    "mount": mount_path,
    "mount_each": mount_each,
    "docker_line": docker_line,
    "image": image_ref,
    "name": identifier,
    "comment": comment,
}


def _only_quoted(value: Any) -> Any:
    """What a template may print: quoted text, numbers, and the text of its own macros."""
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
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    return environment


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of ``templates/<template>`` for ``context``."""
    return _environment().get_template(template).render(context)
