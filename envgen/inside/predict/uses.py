"""Finds functions of a release where the release itself uses them, by reading its source.

A function that moves between releases still has its users: they import it from its new place. Modules that had it are
the last resort.
"""

from __future__ import annotations

import ast
import collections
import functools
import glob
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

LARGEST = 4 << 20  # bytes of a source file; the largest of 0.33.0 has 0.4 MiB


class Thing(NamedTuple):
    """A function or class: its name, the files of the package that use it (glob patterns), and modules that had it."""

    name: str
    users: Tuple[str, ...]
    places: Tuple[str, ...] = ()


MOE = ("model_executor/layers/quantization/*.py", "model_executor/layers/fused_moe/*.py")
THINGS: Dict[str, Thing] = {
    "parser": Thing("make_arg_parser", ("entrypoints/cli/serve.py",), (
        "vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")),
    "parser class": Thing("FlexibleArgumentParser", ("entrypoints/cli/serve.py", "entrypoints/cli/main.py"), (
        "vllm.utils.argparse_utils", "vllm.utils")),
    "arguments": Thing("AsyncEngineArgs", ("entrypoints/cli/serve.py", "v1/engine/async_llm.py"), (
        "vllm.engine.arg_utils",)),
    "attention": Thing("get_attn_backend", ("model_executor/layers/attention/*.py", "attention/layer.py"), (
        "vllm.v1.attention.selector", "vllm.attention.selector")),
    "attention backends": Thing("AttentionBackendEnum", ("v1/attention/*.py", "platforms/*.py"), (
        "vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")),
    "layout": Thing("get_kv_cache_layout", ("v1/attention/backends/*.py",), ("vllm.v1.attention.backends.utils",)),
    "experts": Thing("RoutedExperts", MOE, ("vllm.model_executor.layers.fused_moe.routed_experts",)),
    "older experts": Thing("FusedMoE", MOE, ("vllm.model_executor.layers.fused_moe",)),
    "plain experts": Thing("UnquantizedFusedMoEMethod", MOE, (
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method",)),
    "experts config": Thing("FusedMoEConfig", MOE, ("vllm.model_executor.layers.fused_moe.config",)),
    "experts parallel": Thing("FusedMoEParallelConfig", MOE, ("vllm.model_executor.layers.fused_moe.config",)),
    "expert backends": Thing("MoEBackend", ("config/*.py", *MOE), ("vllm.config.kernel",)),
    "expert kernels": Thing("FusedMoEExperts", MOE, ("vllm.model_executor.layers.fused_moe.modular_kernel",)),
    "quantization flags": Thing("QuantizationConfigArgs", ("engine/arg_utils.py", "config/*.py"), (
        "vllm.config.quantization",)),
    "routing": Thing("RoutingMethodType", MOE, ("vllm.model_executor.layers.fused_moe.config",)),
    "activation": Thing("MoEActivation", MOE, ("vllm.model_executor.layers.fused_moe.activation",)),
    "model": Thing("initialize_model", ("model_executor/model_loader/*.py",), (
        "vllm.model_executor.model_loader.utils",)),
    "set config": Thing("set_current_vllm_config", ("v1/worker/*.py",), ("vllm.config",)),
    "reasoning-parser": Thing("ReasoningParserManager", ("entrypoints/cli/serve.py", "reasoning/*.py"), (
        "vllm.reasoning",)),
    "tool-call-parser": Thing("ToolParserManager", (
        "entrypoints/launchers/api_server/*.py", "entrypoints/openai/*.py"), (
        "vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")),
}  # fmt: skip


def origins(thing: Thing, package: str) -> Iterator[str]:
    """The modules that may have the thing: what its users import, what other modules import most, where it was.

    ``package``: the folder of vLLM.
    """
    given: List[str] = []
    for pattern in thing.users:
        for path in sorted(glob.glob(os.path.join(package, *pattern.split("/")))):
            given.append(origin(thing.name, path, package) or "")
    found = [module for module, _ in collections.Counter(filter(None, given)).most_common()]
    for module in found:
        yield module
    others: "collections.Counter[str]" = collections.Counter()
    for folder, _, files in os.walk(package):
        for name in files:
            if name.endswith(".py"):
                others[origin(thing.name, os.path.join(folder, name), package) or ""] += 1
    del others[""]
    ranked = others.most_common()
    if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) and ranked[0][0] not in found:
        yield ranked[0][0]
    for module in thing.places:
        yield module


def origin(name: str, path: str, package: str) -> Optional[str]:
    """The module from which a source file takes ``name``: what it imports, or itself; None if it does not have it."""
    try:
        if os.path.getsize(path) > LARGEST:
            return None
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return sources(text, path, package).get(name) if name.encode() in text else None


@functools.lru_cache(maxsize=None)
def sources(text: bytes, path: str, package: str) -> Dict[str, str]:
    """Name -> the module from which a source file takes it. Parsing is the slow part: many things are in one file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    inner = os.path.relpath(path, package)[: -len(".py")].split(os.sep)
    own = ["vllm"] + (inner[:-1] if inner[-1] == "__init__" else inner)
    around = ["vllm"] + inner[:-1]
    found: Dict[str, str] = {}
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            for one in node.names:
                found.setdefault(one.name, ".".join(above + ([node.module] if node.module else [])))
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, ".".join(own))
    return found


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, outer ones first; expressions are most of a tree, and import nothing."""
    waiting: "collections.deque[ast.AST]" = collections.deque(tree.body)
    while waiting:
        node = waiting.popleft()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, field, ()))
