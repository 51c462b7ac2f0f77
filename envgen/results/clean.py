"""Secrets never reach a record: texts of an environment are cleaned before they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envgen.redact import redact, secret_like

HIDDEN = "[redacted: secret value]"


def without_secrets(value: Any) -> Any:
    """``value`` with what looks like a secret replaced, by a variable's name, by a flag's, or by its own shape.

    Names of people and folders stay: a record lies beside the project. The page, which is for handing on, has them out.
    """
    if isinstance(value, Mapping):
        return {name: _named(str(name), item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _words(value)
    if isinstance(value, str):
        cleaned = redact(value)
        return cleaned if "[redacted" in cleaned else value
    return value


def _named(name: str, value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and value and secret_like(name) else without_secrets(value)


def _words(words: Sequence[Any]) -> list[Any]:
    """Arguments: the word after ``--api-key`` goes, too."""
    found: list[Any] = []
    before = ""
    for word in words:
        found.append(_named(before, word) if before else without_secrets(word))
        is_flag = isinstance(word, str) and word.startswith("--") and "=" not in word
        before = word.lstrip("-").replace("-", "_") if is_flag else ""
    return found
