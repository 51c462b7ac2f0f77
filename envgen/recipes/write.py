"""Writes a recipe as a profile into a project file, whose other text stays as it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import yaml
from packaging.version import Version

from envgen.binding import JsonDict, JsonObject
from envgen.errors import RefusedError
from envgen.profile.caches import HUGGINGFACE, KNOWN
from envgen.profile.flags import takes_no_prompt
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.profile.tree import YamlNode
from envgen.profile.values import Pin
from envgen.recipes.read import Recipe
from envgen.recipes.shipped import bytes_of

GB10 = 121.7  # GiB, as public logs of GB10s show
_SHARE = "gpu-memory-utilization"
_KEPT = ("host", "port", _SHARE)


def left_of(
    recipe: Recipe, parent: Profile, machines: Iterable[str], image: bool = False
) -> list[str]:
    """The parts of the recipe that its profile lacks. ``image``: the recipe's image is its base."""
    missing = list(recipe.left)
    source = parent.sources.get("vllm")
    version = "" if image or source is None else source.origin.version
    if recipe.image and not image:  # a name without a slash is one that its author builds
        has = f"installs vLLM {version}" if version else "has its own vLLM"
        missing.append(
            f"image {recipe.image}: profile {parent.name} {has}"
            + "; --image takes the recipe's" * ("/" in recipe.image)
        )
    if recipe.release and version and Version(version) < Version(recipe.release):
        missing.append(f"vLLM {recipe.release} or newer: profile {parent.name} installs {version}")
    wheel = None if image else _wheel_of(parent)
    if (
        wheel is not None
        and not recipe.b12x
        and "b12x" not in wheel.extras
        and "b12x" in json.dumps(dict(recipe.args)).lower()
    ):
        extra = replace(wheel, extras=(*wheel.extras, "b12x"))
        message = f"kernels of b12x: profile {parent.name} installs vLLM without them"
        missing.append(f"{message}; write `wheel: {str(extra)!r}`")
    shares = [one.args[_SHARE] for one in parent.services.values() if _SHARE in one.args]
    inherited = shares[0] if shares else ""
    if inherited and _SHARE not in recipe.args:
        missing.append(f"a share of memory: it has none, and {inherited} of {parent.name} stays")
    if is_speech(recipe.repo):
        missing.append("a prompt to complete: a speech model; `up` waits until it is listed")
    if recipe.nodes > 1 and len(list(machines)) < recipe.nodes:
        missing.append(
            f"{recipe.nodes} machines: name them below `nodes`, then write `cluster` (docs/two-machines.md)"
        )
    memory = (bytes_of(recipe.weights) or 0) / (1 << 30)
    if parent.cuda.arch_list.shares_memory and memory > GB10 * recipe.nodes:
        missing.append(
            f"{recipe.weights} of memory: a GB10 has {GB10} GiB, so it takes {math.ceil(memory / GB10)} or more"
        )
    return missing


def profile_body(
    recipe: Recipe,
    parent: Profile,
    service: str,
    tree: YamlNode,
    machines: Iterable[str],
    image: bool = False,
) -> JsonDict:
    """The keys of a profile that extends ``parent``, with the recipe's model. ``tree``: of
    ``parent``.
    """
    body: JsonDict = {
        "description": f"{recipe.repo}, from the recipe {recipe.name}",
        "extends": parent.name,
    }
    if image:
        body |= _image_of_recipe(recipe, parent)
    words = _service(recipe, parent, service, tree, machines)
    body |= recipe.profile
    if "secrets" in body:
        body["secrets"] = list(dict.fromkeys([*parent.secrets, *body["secrets"]]))
    if "shm_size" in words and parent.ipc == "host":
        body.setdefault("ipc", "private")
    body["services"] = {service: words}
    if HUGGINGFACE.name not in parent.caches:  # where `services.X.model` keeps its weights
        place = {"path": HUGGINGFACE.path, "host": "~/.cache/huggingface"}
        body.setdefault("caches", {}).setdefault(HUGGINGFACE.name, place)
    if parent.variants:
        body["variants"] = dict.fromkeys(parent.variants)  # drafts and kernels of another model
    wheel = None if image else _wheel_of(parent)
    if recipe.b12x and wheel is not None:
        _add_b12x(body, wheel, recipe, service)
    return body


def _image_of_recipe(recipe: Recipe, parent: Profile) -> JsonDict:
    """The keys for the recipe's image as the base, without what the parent installs."""
    base: JsonDict = {"image": recipe.image}
    if parent.base.apt:
        base["apt"] = None
    installed = ("deps", "tools", "remove", "override")
    return {
        "base": base,
        "sources": dict.fromkeys(parent.sources),
        "pip": {key: None for key in installed if getattr(parent.pip, key)},
    }


def _service(
    recipe: Recipe, parent: Profile, service: str, tree: YamlNode, machines: Iterable[str]
) -> JsonDict:
    """The keys of the service: null takes away what the parent says of its own model."""
    inherited = parent.services[service]
    words: JsonDict = {"model": {"repo": recipe.repo}}
    if recipe.revision:
        words["model"]["revision"] = recipe.revision
    if recipe.repo.startswith("/"):  # a folder of a mount
        words = {"model": None, "command": ["vllm", "serve", recipe.repo]}
    elif tree.at(("services", service, "command", "2")) or not inherited.is_vllm:
        words["command"] = ["vllm", "serve"]
    args: JsonDict = {flag: None for flag in inherited.args if flag not in _KEPT}
    args |= recipe.args
    if args:
        words["args"] = args
    if recipe.env:
        words["env"] = dict(recipe.env)
    words |= recipe.service
    memory = memory_of(recipe)
    if memory or (_SHARE in recipe.args and inherited.needs_memory is not None):
        words["needs_memory"] = memory
    nodes = list(machines)[: recipe.nodes]
    if recipe.nodes > 1 and len(nodes) == recipe.nodes:
        words["cluster"] = {"nodes": nodes}
    has_name = tree.at(("services", service, "ready", "model")) is not None
    ready = _ready(recipe, inherited, has_name)
    if ready:
        words["ready"] = ready
    return words


def _ready(recipe: Recipe, inherited: Service, has_name: bool) -> JsonDict:
    """What shows that the recipe's model is ready. ``has_name``: the parent names its model."""
    ready: JsonDict = {}
    if has_name:
        ready["model"] = None
    if inherited.ready is not None:
        for kind in ("expect", "forbid"):
            if patterns := getattr(inherited.ready, kind):
                ready[kind] = dict.fromkeys(patterns)
        silent = takes_no_prompt(recipe.args.get) or is_speech(recipe.repo)
        if inherited.ready.expect_text is not None and silent:
            ready["expect_text"] = None
    if recipe.repo.startswith("/"):
        ready["model"] = recipe.args.get("served-model-name", recipe.repo)
    if "port" in recipe.args:
        ready["port"] = recipe.args["port"]
    return ready


def _wheel_of(parent: Profile) -> Pin | None:
    """The wheel of vLLM that a profile installs; None where it builds or mounts it."""
    source = parent.sources.get("vllm")
    return source.origin.wheel if source is not None else None


def _add_b12x(body: JsonDict, wheel: Pin, recipe: Recipe, service: str) -> None:
    """Write the variant with kernels made for SM120 and SM121, and what it needs in the image."""
    extras = tuple(dict.fromkeys((*wheel.extras, "b12x")))
    with_kernels = replace(wheel, extras=extras)
    body["sources"] = {"vllm": {"origin": {"wheel": str(with_kernels)}}}
    body["pip"] = {"prefer": ["b12x"]}  # FlashInfer brings an older copy
    caches = body.setdefault("caches", {})
    for cache in ("cute_dsl", "b12x"):
        caches[cache] = {"path": KNOWN[cache].path}
    args = {"attention-config": None, **recipe.b12x}
    variants = body.setdefault("variants", {})
    variants["b12x"] = {
        "description": "Kernels made for SM120 and SM121 (b12x). See envgen answers",
        "services": {service: {"args": args}},
    }


def profile_text(
    recipe: Recipe,
    name: str,
    parent: Profile,
    body: JsonObject,
    left: Iterable[str],
    indent: int,
) -> str:
    """The lines of the profile ``body``, below what is known about the recipe."""
    head = [f"Recipe {recipe.name}: {recipe.repo}"]
    if recipe.source:
        head.append(f"Source: {recipe.source}" + f" at {recipe.commit}" * bool(recipe.commit))
    if recipe.date:
        head.append(
            f"Read on {recipe.date}. null removes what profile {parent.name} sets for its own model."
        )
    head += [f"Run by others: {recipe.ran}"] if recipe.ran else []
    head += [f"Not placed: {one}" for one in left]
    pad = " " * indent
    lines = [f"{pad}# {_plain(one)}" for one in head]
    text = yaml.dump({name: body}, Dumper=_AsWritten, sort_keys=False, width=100)
    lines += [f"{pad}{line}" for line in text.removesuffix("\n").split("\n")]
    return "\n".join(lines) + "\n"


def is_speech(repo: str) -> bool:
    """Whether the name of a model tells that it hears or speaks, and completes no text."""
    return re.search(r"whisper|realtime|[-_.](asr|tts)\b|parakeet", repo, re.IGNORECASE) is not None


def memory_of(recipe: Recipe) -> str | None:
    """Memory that must be free: the share of a GB10's memory that vLLM may use."""
    share = str(recipe.args.get(_SHARE, ""))
    if not re.fullmatch(r"0?\.[0-9]+|1(\.0+)?", share):
        return None
    return f"{math.ceil(float(share) * GB10)}GiB"


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:300]


class _AsWritten(yaml.SafeDumper):
    """Text keeps the spelling of the recipe: 0.70 stays 0.70, and true is no text."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"(-?[0-9]+)|-?[0-9]+\.[0-9]+|true|false", text)
    kind = "str"
    if plain and plain[1]:
        kind = "int"
    elif plain:
        kind = "float" if "." in text else "bool"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{kind}", text)


_AsWritten.add_representer(str, _written)


def added(text: str, lines: str) -> str:
    """The project file with the lines of a profile at its end, and the line ends of the file."""
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "\n" if text.endswith("\n") else "\n\n"
    return text + (gap + lines).replace("\n", newline)


def indent_of(text: str) -> int:
    """The indentation of the profiles at the end of a project file. RefusedError if something else
    is there.
    """
    top: Any = yaml.compose(text, yaml.BaseLoader)
    name, profiles = top.value[-1]
    is_block = isinstance(profiles, yaml.MappingNode) and not profiles.flow_style
    if name.value != "profiles" or not is_block or not profiles.value:
        raise RefusedError(
            "the file does not end with `profiles` as a block mapping", hint="move it there"
        )
    return int(profiles.value[0][0].start_mark.column)
