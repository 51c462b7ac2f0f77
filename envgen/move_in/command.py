"""A command as a profile has it: the program and its words, then flags by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from envgen.profile.patterns import FLAG, matches
from envgen.redact import is_secret_value, secret_in, secret_like

# Short flags of vLLM with more than one letter: a profile's `args` would give them two dashes.
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
API_KEY = "VLLM_API_KEY"


def split(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """``words`` as command and args. Where flags can't be named without changing what they say, they stay words."""
    words = [_SHORT.get(word, word) for word in words]
    first = next((number for number, word in enumerate(words) if _is_flag(word)), len(words))
    args: dict[str, Any] = {}
    number = first
    while number < len(words):
        name, has_value, value = words[number].removeprefix("--").partition("=")
        if not words[number].startswith("--") or not matches(FLAG, name) or len(name) < 2 or name in args:
            return words, {}
        number += 1
        values = [value] if has_value else []
        while not has_value and number < len(words) and not _is_flag(words[number]):
            values.append(words[number])
            number += 1
        args[name] = True if not values else values[0] if len(values) == 1 else values
    same = [name.replace("_", "-") for name in args]
    return (words, {}) if len(set(same)) < len(same) else (words[:first], args)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-[0-9.]+", word)


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """``words`` without flags that carry a key, and the names of those flags."""
    kept: list[str] = []
    dropped: list[str] = []
    number = 0
    while number < len(words):
        name, has_value, value = words[number].partition("=")
        after = words[number + 1] if number + 1 < len(words) else ""
        named = name.startswith("--") and secret_like(name.lstrip("-").replace("-", "_"))
        if named and (is_secret_value(value if has_value else after) or "$" in (value or after)):
            dropped.append(name)
            number += 1 if has_value else 2
            continue
        if secret_in(words[number]):
            dropped.append("a word")
        else:
            kept.append(words[number])
        number += 1
    return kept, dropped


def of_image(image: str, words: list[str]) -> list[str]:
    """The whole command, where the image is known to begin it: vLLM's own images run `vllm serve`."""
    if re.match(r"(docker\.io/)?vllm/vllm-openai(:|@|$)", image) and words and words[0] != "vllm":
        words = ["vllm", "serve", *words]
    if words[:2] == ["vllm", "serve"] and "--model" in words[:-1] and (len(words) < 3 or words[2].startswith("-")):
        at = words.index("--model")
        words = ["vllm", "serve", words[at + 1], *words[2:at], *words[at + 2 :]]
    return words


def served_name(command: Sequence[str], args: dict[str, Any]) -> str:
    """The name that a vLLM server lists; empty where it is another program."""
    if list(command[:2]) != ["vllm", "serve"]:
        return ""
    name = args.get("served-model-name") or args.get("served_model_name")
    if isinstance(name, list):
        name = name[0]
    return str(name or (command[2] if len(command) > 2 else ""))
