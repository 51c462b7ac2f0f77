"""The Jinja2 side of rendering: strict, and unable to print text that was not quoted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jinja2

from envgen.files import templates_dir
from envgen.render import quote
from envgen.render.parts import Pair
from envgen.render.quote import Quoted


def docker_pair(pair: Pair) -> Quoted:
    """``NAME="value"`` of an ENV or LABEL line."""
    value = quote.docker_prepend(pair.name, pair.value) if pair.prepend else quote.docker_value(pair.value)
    return Quoted(f"{quote.identifier(pair.name)}={value}")


def assignment(pair: Pair) -> Quoted:
    """``NAME='value'`` as an argument of env(1)."""
    return Quoted(f"{quote.identifier(pair.name)}={quote.shell_word(pair.value)}")


FILTERS: dict[str, Callable[..., Quoted]] = {
    "docker_value": quote.docker_value,
    "docker_pair": docker_pair,
    "assignment": assignment,
    "sh": quote.shell_word,
    "sh_words": quote.shell_words,
    "mount": quote.mount_path,
    "docker_line": quote.docker_line,
    "image": quote.image_ref,
    "name": quote.identifier,
    "comment": quote.comment,
    "yaml": quote.compose_text,
    "yaml_key": quote.yaml_key,
}


def _only_quoted(value: Any) -> Any:
    """What a template may print: quoted text, numbers, and the text of its own macros."""
    if isinstance(value, (Quoted, int)) or (isinstance(value, str) and not value):
        return value
    raise TypeError(f"a template prints {value!r}, which was not quoted")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
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
