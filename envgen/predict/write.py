"""Puts patterns into `ready.expect` of a project file: as text at the nodes' places, so that all else stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml


def with_patterns(text: str, path: Sequence[str], patterns: Mapping[str, str]) -> str | None:
    """``text`` with each pattern set in the mapping at ``path``; None where the file has no such mapping.

    An entry that is there is replaced, another one is put in front. Comments, order and quotes of the rest are kept.
    """
    mapping = _at(yaml.compose(text, yaml.BaseLoader), path)
    if not isinstance(mapping, yaml.MappingNode) or not mapping.value:
        return None
    present = {key.value: value for key, value in mapping.value if isinstance(key, yaml.ScalarNode)}
    first = mapping.value[0][0].start_mark
    after = ", " if mapping.flow_style else "\n" + " " * first.column
    added = "".join(f"{name}: {quoted(pattern)}{after}" for name, pattern in patterns.items() if name not in present)
    edits = [(first.index, first.index, added)]
    for name, pattern in patterns.items():
        if name in present:
            edits.append((present[name].start_mark.index, present[name].end_mark.index, quoted(pattern)))
    for start, end, new in sorted(edits, key=lambda one: one[0], reverse=True):
        text = text[:start] + new + text[end:]
    return text


def snippet(path: Sequence[str], patterns: Mapping[str, str]) -> str:
    """What to paste where the file has no such mapping."""
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(path)]
    lines += [f"{'  ' * len(path)}{name}: {quoted(pattern)}" for name, pattern in patterns.items()]
    return "\n".join(lines)


def quoted(text: str) -> str:
    """A YAML scalar, right in block and flow style: a regular expression may hold any character."""
    return "'" + text.replace("'", "''") + "'"


def _at(node: yaml.Node | None, path: Sequence[str]) -> yaml.Node | None:
    for key in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == key), None)
    return node
