"""The shipped recipes, and the facts of their models, for machines that have no file of a model
yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from envgen.binding import JsonObject
from envgen.recipes.read import Recipe, name_of, read_recipe

_UNITS = {"GB": 10**9, "GiB": 1 << 30}


@cache
def shipped() -> Mapping[str, Recipe]:
    """The shipped recipes, by name."""
    folder = resources.files("envgen.recipes") / "data"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")),
        key=lambda file: file.name,
    )
    return {
        name_of(file.name): read_recipe(file.read_text(encoding="utf-8"), file.name)
        for file in files
    }


@cache
def models() -> Mapping[str, JsonObject]:
    """``config`` (config.json) and ``weights`` (published bytes) of the recipes' models and drafts,
    by repository.
    """
    folder = resources.files("envgen.recipes") / "data"
    known = {}
    for name, recipe in shipped().items():
        draft = (draft_of(recipe), f"{name}.draft", recipe.draft)
        for repo, file, size in ((recipe.repo, name, recipe.weights), draft):
            if repo:
                text = (folder / f"{file}.json").read_text(encoding="utf-8")
                known[repo] = {"config": json.loads(text), "weights": bytes_of(size)}
    return known


def draft_of(recipe: Recipe) -> str:
    """The repository of the recipe's separate draft model, if any."""
    speculation = recipe.args.get("speculative-config")
    return str(speculation.get("model", "")) if isinstance(speculation, Mapping) else ""


def bytes_of(text: str) -> int | None:
    """The bytes of ``21.5 GB`` or ``20 GiB``; None for other text."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?) (GB|GiB)", text)
    return int(float(size[1]) * _UNITS[size[2]]) if size else None
