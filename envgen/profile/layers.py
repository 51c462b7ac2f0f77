"""The layers of a profile: defaults, the profiles that it extends, itself, the local file,
overrides.

Mappings merge deep, lists and scalars replace, ``null`` removes. Naming one kind of a source's
origin removes the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envgen.errors import Place, Problem
from envgen.profile import tree as nodes
from envgen.profile.model import ORIGIN_KINDS
from envgen.profile.service import Mount
from envgen.profile.shape import NAME, matches
from envgen.profile.tree import ValueText, YamlNode, parse_value, profile_hint, scalar
from envgen.profile.values import plain_text
from envgen.text import shorten

# The keys whose values the rendered Compose files take from variables: places of one machine.
OF_COMPOSE = re.compile(
    r"ENVGEN_(SOURCES__[A-Z0-9_]+__ORIGIN__CHECKOUT|CACHES__[A-Z0-9_]+__HOST"
    r"|SERVICES__[A-Z0-9_]+__MOUNTS__[A-Z0-9_]+__HOST"
    r"|BUILD__(MAX_JOBS|WHEELHOUSE)|PIP__NETRC|NETWORK__CA_CERTIFICATES)"
)


@dataclass(frozen=True)
class Override:
    """One value, and the path of the value that it replaces."""

    path: tuple[str, ...]
    node: YamlNode


_PART = r'"(?:[^"]|"")*"|[^."]+'


def split_path(text: str) -> tuple[str, ...]:
    """The parts of ``a.b."c.d"``; double quotes may have dots, and doubled quotes. Raises
    ValueError.
    """
    if not re.fullmatch(rf"(?:{_PART})(?:\.(?:{_PART}))*", text):
        raise ValueError("a part between the dots is empty, or a double quote is not closed")
    parts = []
    for part in re.findall(_PART, text):
        if part[0] == '"':
            part = part[1:-1].replace('""', '"')
        parts.append(part)
    return tuple(parts)


def _override(
    path: tuple[str, ...], text: str, source: ValueText, problems: list[Problem]
) -> list[Override]:
    """The override with the value ``text``: YAML flow where it begins like one, else one plain
    scalar.
    """
    node = None
    new = []
    try:
        source.text = plain_text(text).strip(" ")
    except ValueError as error:
        new = [Problem(str(error), Place(source.label))]
    else:
        flow = source.text[:1] in ("[", "{", '"', "'")
        node, new = parse_value(source) if flow else (scalar(source.text, source), [])
    problems += new
    return [Override(path, node)] if node is not None and not new else []


def from_sets(sets: Iterable[str], problems: list[Problem]) -> list[Override]:
    """The overrides of ``--set`` options, in order."""
    overrides = []
    for text in sets:
        assigned = re.fullmatch(
            r'((?:"[^"]*"|[^"=])+)=(.*)', text, re.DOTALL
        )  # the first `=` outside of quotes
        if not assigned:
            place = Place(f"--set {shorten(text, 80)}")
            problems.append(
                Problem("is not an assignment", place, "write it like --set build.max_jobs=4")
            )
            continue
        name, value = assigned.groups()
        source = ValueText(f"--set {shorten(name, 80)}", nodes.SET)
        try:
            path = split_path(plain_text(name.strip()))
        except ValueError as error:
            problems.append(
                Problem(
                    f"is not a path: {error}", Place(source.label), "write it like build.max_jobs"
                )
            )
            continue
        if value.strip():
            overrides += _override(path, value, source, problems)
        else:
            hint = f"{name}=null removes it; {name}='\"\"' is empty text"
            problems.append(Problem("has no value", Place(source.label), hint))
    return overrides


def from_environ(environ: Mapping[str, str], problems: list[Problem]) -> list[Override]:
    """The overrides of the variables that Compose files name, sorted by name."""
    overrides = []
    for name, text in sorted(environ.items()):
        # An empty variable counts as unset, as in Compose's ${NAME:-default}.
        if OF_COMPOSE.fullmatch(name) and text.strip():
            key = name.removeprefix("ENVGEN_").lower()
            source = ValueText(name, nodes.ENVIRONMENT)
            overrides += _override(tuple(key.split("__")), text, source, problems)
    return overrides


def section(top: YamlNode, name: str, problems: list[Problem]) -> YamlNode:
    """The mapping ``name`` at the top of a file; an empty one where it is missing."""
    node = top.items.get(name)
    if node is not None and node.kind == nodes.MAP:
        return node
    if node is not None and node.kind != nodes.NULL:
        problems.append(Problem(f"expected a mapping, found {node.seen()}", node.place(name)))
    return YamlNode(nodes.MAP, top.source)


def expand_short_forms(node: YamlNode, path: tuple[str, ...] = ()) -> YamlNode:
    """A profile, or defaults, with keys instead of the short form of mounts (HOST:CONTAINER[:ro]),
    and one number for a limit whose soft and hard value are the same.
    """
    match path:
        case (*_, "ulimits", _) if node.items.keys() == {"soft", "hard"}:
            soft, hard = node.items.values()
            if soft.text == hard.text:
                return soft
            return node
        case (*_, "services", _, "mounts", _) if node.kind == nodes.TEXT:
            if matches(Mount.TEXT, node.text):
                return _mount(node)
            return node
    if node.kind != nodes.MAP:
        return node
    children = {}
    for key, child in node.items.items():
        children[key] = expand_short_forms(child, (*path, key))
    return node.with_items(children)


def _mount(node: YamlNode) -> YamlNode:
    """HOST:CONTAINER[:ro] with keys."""
    host, target, *mode = node.text.split(":")
    items = {
        "host": _copy(node, host),
        "path": _copy(node, target),
    }
    if mode == ["ro"]:
        items["read_only"] = scalar("true", node.source, node.line, node.column)
    return replace(node, kind=nodes.MAP, text="", items=items)


def chains(profiles: dict[str, YamlNode], problems: list[Problem]) -> dict[str, list[str]]:
    """Each profile with all that it extends, the farthest first.

    A circle or an unknown parent is a problem, and ends the chain.
    """
    chains_of: dict[str, list[str]] = {}
    for name in profiles:
        steps: dict[str, None] = {}  # from ``name`` on, in order
        step: str | None = name
        while step is not None and step not in chains_of:
            steps[step] = None
            step = _parent(step, steps, profiles, problems)
        above = chains_of.get(step or "", [])
        for step in reversed(steps):
            above = chains_of[step] = [*above, step]
    return {name: chains_of[name] for name in profiles}


def _parent(
    name: str, steps: Mapping[str, None], profiles: Mapping[str, YamlNode], problems: list[Problem]
) -> str | None:
    """The profile that ``name`` extends, if valid; ``steps``: the chain so far."""
    parent = profiles[name].items.get("extends")
    if parent is None or parent.kind == nodes.NULL:
        return None
    place = parent.place(f"profiles.{name}.extends")
    if parent.kind in (nodes.MAP, nodes.LIST):
        problems.append(Problem(f"expected the name of a profile, found {parent.seen()}", place))
    elif parent.text in steps:
        members = list(steps)[list(steps).index(parent.text) :]
        text = " -> ".join([*members, members[0]])
        problems.append(Problem(f"extends itself: {text}", place, "remove one of these `extends`"))
    elif parent.text not in profiles:
        problems.append(
            Problem(
                f"profile {parent.text!r} does not exist",
                place,
                profile_hint(parent.text, list(profiles)),
            )
        )
    else:
        return parent.text
    return None


def merge(base: YamlNode, over: YamlNode, path: tuple[str, ...] = ()) -> YamlNode:
    """``base`` with ``over`` laid on top."""
    items = dict(base.items)
    _drop_alternatives(items, over, path)
    for name, node in over.items.items():
        below = items.get(name)
        if node.kind == nodes.NULL and below is not None and below.kind != nodes.NULL:
            del items[name]
        elif below is not None and below.kind == nodes.MAP and node.kind == nodes.MAP:
            items[name] = merge(below, node, (*path, name))
        else:
            items[name] = node
    return base.with_items(items)


def _drop_alternatives(items: dict[str, YamlNode], over: YamlNode, path: tuple[str, ...]) -> None:
    """Remove from ``items`` the alternatives of what ``over`` sets."""
    if len(path) != 3 or path[::2] != ("sources", "origin"):
        return
    kinds = set()
    for kind in ORIGIN_KINDS:
        if kind in over.items and over.items[kind].kind != nodes.NULL:
            kinds.add(kind)
    if kinds and not kinds & items.keys():
        items.clear()


def layered(
    files: Sequence[tuple[YamlNode, dict[str, YamlNode]]], orders: Mapping[str, list[str]]
) -> dict[str, YamlNode]:
    """The merged tree of each profile: that of the profile which it extends, else the defaults of
    the first file; over it what the first file says of it, then the defaults of the others, and
    what they say of it.

    A profile that names no Dockerfile has one of its own, not that of the profile that it extends.
    """
    defaults, profiles = files[0]
    trees: dict[str, YamlNode] = {}
    for name in sorted(orders, key=lambda name: len(orders[name])):
        order = orders[name]
        if len(order) > 1:
            extended = order[-2]
            tree = _without(trees[extended], "dockerfile")
        else:
            nothing = YamlNode(nodes.MAP, defaults.source)
            tree = merge(nothing, defaults)
        tree = merge(tree, _without(profiles[name], "extends"))
        for file_defaults, file_profiles in files[1:]:
            tree = merge(tree, file_defaults)
            if name in file_profiles:
                tree = merge(tree, _without(file_profiles[name], "extends"))
        trees[name] = profiles[name].with_items(tree.items)
    for number, name in enumerate(orders):
        tree = trees[name]
        if "dockerfile" in tree.items or not matches(NAME, name):
            continue
        file = f"Dockerfile.{name}" if number else "Dockerfile"
        source = ValueText("default", nodes.DEFAULT)
        node = scalar(file, source, quoted=True)
        trees[name] = tree.with_items({**tree.items, "dockerfile": node})
    return {name: trees[name] for name in orders}


def _without(node: YamlNode, key: str) -> YamlNode:
    items = dict(node.items)
    items.pop(key, None)
    return node.with_items(items)


def _copy(node: YamlNode, text: str) -> YamlNode:
    return scalar(text, node.source, node.line, node.column, quoted=True)


def overridden(tree: YamlNode, overrides: Iterable[Override]) -> YamlNode:
    """``tree`` with ``overrides`` laid over it, in order. A null in a mapping that is not there
    makes none.
    """
    for override in overrides:
        path = override.path
        if override.node.kind != nodes.NULL or tree.at(path[:-1]) is not None:
            tree = merge(tree, expand_short_forms(as_tree(path, override.node)))
    return tree


def as_tree(path: Sequence[str], node: YamlNode) -> YamlNode:
    """A tree with only ``node``, at ``path``."""
    for part in reversed(path):
        node = YamlNode(nodes.MAP, node.source, items={part: node})
    return node
