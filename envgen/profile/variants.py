"""Variants: small changes to how a profile is run, written down below ``variants`` and chosen by name.

Only what concerns a running container may be in one, so a variant never asks for another image. It is stronger than
the files and weaker than variables and options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from envgen.profile.tree import LIST, MAP, NULL, VARIANT, Node, Source


def written(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Node]]:
    """Each value below ``node`` as the file spells it: its path, its text, its node."""
    if node.kind == MAP:
        for name, child in node.items.items():
            yield from written(child, (*path, name))
    elif node.kind == LIST:
        yield path, "[" + ", ".join(child.text for child in node.elements) + "]", node
    else:
        yield path, "null" if node.kind == NULL else node.text, node


def lay_over(tree: Node, name: str) -> Node | None:
    """What the variant ``name`` of ``tree`` changes, as a separate tree; None when there is no such variant.

    Its values keep their places; their layer says that they came by a variant.
    """
    node = tree.items.get("variants")
    node = node.items.get(name) if node is not None and node.kind == MAP else None
    if node is None or node.kind != MAP:
        return None
    sources: dict[int, Source] = {}
    return _copy(overlay(node), sources)


def overlay(node: Node) -> Node:
    """What a variant changes: all of it but its description."""
    return node.with_items({name: child for name, child in node.items.items() if name != "description"})


def _copy(node: Node, sources: dict[int, Source]) -> Node:
    source = sources.get(id(node.source))
    if source is None:
        source = sources[id(node.source)] = Source(node.source.label, VARIANT, node.source.text)
    return replace(node, source=source, items={name: _copy(child, sources) for name, child in node.items.items()})
