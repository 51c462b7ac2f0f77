"""The shipped recipes, and the facts of their models, for machines that have no file of a model yet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from envgen.recipes.read import Recipe, name_of, read_recipe

_UNITS = {"GB": 10**9, "GiB": 1 << 30}
_SHARE = 0.92  # vLLM 0.32.0's own default of gpu-memory-utilization
_STATES = 3  # of a Mamba or GDN layer, for each sequence, with a prefix cache (vLLM 0.33.0)


@cache
def shipped() -> Mapping[str, Recipe]:
    """The shipped recipes, by name."""
    folder = resources.files("envgen.recipes") / "data"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {name_of(file.name): read_recipe(file.read_text(encoding="utf-8"), file.name) for file in files}


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """``config`` (config.json) and ``weights`` (published bytes) of the recipes' models and drafts, by repository."""
    folder, found = resources.files("envgen.recipes") / "data", {}
    for name, one in shipped().items():
        for repo, file, size in ((one.repo, name, one.weights), (draft_of(one), f"{name}.draft", one.draft)):
            if repo:
                text = (folder / f"{file}.json").read_text(encoding="utf-8")
                found[repo] = {"config": json.loads(text), "weights": bytes_of(size)}
    return found


def draft_of(recipe: Recipe) -> str:
    """The repository of the recipe's separate draft model, if any."""
    speculation = recipe.args.get("speculative-config")
    return str(speculation.get("model", "")) if isinstance(speculation, Mapping) else ""


def bytes_of(text: str) -> int | None:
    """The bytes of ``21.5 GB`` or ``20 GiB``; None for other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) (GB|GiB)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _memory(text: str) -> int | None:
    """Bytes as vLLM reads them: ``20G`` is 20 GiB, ``20g`` 20 GB."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kmgtKMGT]?)", text)
    if not found:
        return None
    power = " kmgt".index(found[2].lower() or " ")
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)


def size_of(recipe: Recipe) -> Mapping[str, Any] | None:
    """What determines the memory of the recipe's server, in the form of a release's answer; None for an unknown model.

    What the recipe does not set has vLLM's default, except the number of sequences: then 1, the minimum.
    """
    facts = models().get(recipe.repo)
    if facts is None:
        return None
    config, args = facts["config"], recipe.args
    text = config.get("text_config", config)
    draft, beside = args.get("speculative-config"), models().get(draft_of(recipe))
    drafted = str(draft.get("num_speculative_tokens", 0)) if isinstance(draft, Mapping) else "0"
    scheme = config.get("quantization_config", {}).get("kv_cache_scheme", {})  # vLLM's `auto` follows the checkpoint

    try:
        share = float(str(args.get("gpu-memory-utilization", _SHARE)))
    except ValueError:
        share = 0.0

    def number(flag: str, default: int) -> int:
        found = str(args.get(flag, default))
        return int(found) if re.fullmatch("[0-9]{1,15}", found) else 0  # 0: no estimate

    return {
        "config": text,
        "weights": facts["weights"],
        "published": True,
        "context": number("max-model-len", text["max_position_embeddings"]),
        "cache_dtype": str(args.get("kv-cache-dtype", "fp8" if scheme.get("num_bits") == 8 else "auto")),
        "dtype": text.get("dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16",
        "share": share if 0 < share <= 1 else 0.0,
        "fixed": _memory(str(args.get("kv-cache-memory-bytes", ""))),
        "ranks": number("tensor-parallel-size", 1),
        "stages": number("pipeline-parallel-size", 1),
        "sequences": number("max-num-seqs", 1),
        "batched": number("max-num-batched-tokens", 8192),
        "draft": str(draft.get("method", "draft")) if isinstance(draft, Mapping) else "",
        "states": _STATES + (int(drafted) if re.fullmatch("[0-9]{1,4}", drafted) else 0),
        **({"draft_config": beside["config"], "draft_weights": beside["weights"]} if beside else {}),
    }
