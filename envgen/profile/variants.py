"""Variants: small changes to how a profile is run, written down below ``variants`` and chosen by name.

Only what concerns a running container may stand in one, so a variant never asks for another image. It is stronger than
the files and weaker than variables and options.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from envgen.profile.model import Variant
from envgen.profile.overrides import join_path
from envgen.profile.tree import LIST, MAP, NULL, VARIANT, Node, Source, near

if TYPE_CHECKING:
    from envgen.profile.bind import Binding
    from envgen.profile.checks import Report


def written(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Node]]:
    """Each value below ``node`` as the file spells it: its path, its text, its node."""
    if node.kind == MAP:
        for name, child in node.items.items():
            yield from written(child, (*path, name))
    elif node.kind == LIST:
        yield path, "[" + ", ".join(child.text for child in node.elements) + "]", node
    else:
        yield path, "null" if node.kind == NULL else node.text, node


def bind(binding: Binding, inner: Binding, node: Node, path: str) -> Variant:
    """The variant at ``node``. ``inner``, a fresh binding, finds what is wrong in it; nothing in it is required."""
    bound: Variant = inner.record(Variant, node, path, changes=MappingProxyType({}))
    binding.problems += inner.problems
    if inner.problems:
        binding.broken.add(path)
    changes = {join_path(where): text for where, text, _ in written(_overlay(node))} if node.kind == MAP else {}
    return Variant(changes=MappingProxyType(changes), description=bound.description)


def lay_over(tree: Node, name: str) -> Node | None:
    """What the variant ``name`` of ``tree`` changes, as a tree of its own; None when there is no such variant.

    Its values keep their places; their layer says that they came by a variant.
    """
    node = tree.items.get("variants")
    node = node.items.get(name) if node is not None and node.kind == MAP else None
    if node is None or node.kind != MAP:
        return None
    sources: dict[int, Source] = {}
    return _copy(_overlay(node), sources)


def _overlay(node: Node) -> Node:
    return node.with_items({name: child for name, child in node.items.items() if name != "description"})


def _copy(node: Node, sources: dict[int, Source]) -> Node:
    source = sources.get(id(node.source))
    if source is None:
        source = sources[id(node.source)] = Source(node.source.label, VARIANT, node.source.text)
    copy = Node(node.kind, source, node.line, node.column)
    copy.key_line, copy.key_column, copy.text = node.key_line, node.key_column, node.text
    copy.items = {name: _copy(child, sources) for name, child in node.items.items()}
    return copy


def check(report: Report) -> None:
    """Note variants that change a service or choose a group of variables that the profile does not have."""
    services = list(report.profile.services)
    for name in report.profile.variants:
        for service in report.names(("variants", name, "services")):
            if service not in services and not report.is_broken(f"variants.{name}"):
                message = f"this profile has no service {service!r} to change"
                report.problem(("variants", name, "services", service), message, near(service, services), at_key=True)
        _groups(report, name)


def _groups(report: Report, name: str) -> None:
    path = ("variants", name, "env_groups")
    node = report.node(path)
    if node is None or node.kind != LIST:
        return
    known = [*report.names(("env",)), *report.names(("variants", name, "env"))]
    for number, child in node.items.items():
        if child.text not in known:
            report.problem((*path, number), f"there is no group {child.text!r} in env", near(child.text, known))
