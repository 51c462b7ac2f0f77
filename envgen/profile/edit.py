"""Changes single values in the text of a project file: comments, order and spelling of the rest
stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from envgen.errors import Place, Problem, ProjectError

# What a value may be without quotes, in block and in flow style.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+=@-]*(?::[A-Za-z0-9_./+@-]+)*")


def with_value(text: str, place: Place | None, key: str, value: str) -> str:
    """``text`` with another ``value`` of the scalar at ``place``. ProjectError if none begins
    there, or if it is an alias, an anchor or a block of lines.
    """
    for node in _scalars(yaml.compose(text, yaml.BaseLoader)):
        start = node.start_mark
        end = node.end_mark
        at = start.line + 1, start.column + 1
        if place is None or at != (place.line, place.column):
            continue
        if text[start.index] in "&*!|>":
            break
        return text[: start.index] + _yaml_scalar(value, node.style) + text[end.index :]
    raise ProjectError([Problem(f"{key} can't be changed here", place, f"write {value} by hand")])


def _yaml_scalar(value: str, style: str | None) -> str:
    if style is None and _PLAIN.fullmatch(value):
        return value
    if style == "'" and "'" not in value:
        return f"'{value}'"
    quoted: str = yaml.safe_dump(value, default_style='"', width=1 << 30)
    return quoted.strip()


def _scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Each scalar of a document; one that several aliases name only once."""
    left = [node]
    known = set()
    while left:
        one = left.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        if isinstance(one, yaml.ScalarNode):
            yield one
        elif isinstance(one, yaml.SequenceNode):
            left += one.value
        elif isinstance(one, yaml.MappingNode):
            left += [value for _, value in one.value]
