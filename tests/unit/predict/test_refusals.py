"""What counts as a release's refusal, and what only as a question that could not be asked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from envgen.inside.predict.release import NotAskable, ReleaseRefused, error_for


def on_purpose() -> None:
    raise ValueError("head size 80 is not supported")


def not_yet() -> None:
    raise NotImplementedError("no backend supports this")


def from_a_lookup() -> None:
    try:
        dict[str, int]()["x"]
    except KeyError as missing:
        raise ValueError("unknown quantization method: x") from missing


def by_accident() -> None:
    int("x")


def of_the_standard_library() -> None:
    json.loads("{")


def no_tokenizer() -> None:
    getattr(None, "get_vocab")()  # noqa: B009


def absent() -> None:
    raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")


def absent_behind_it() -> None:
    try:
        absent()
    except ImportError:
        raise ValueError("Model architectures ['X'] failed to be inspected") from None


def no_import() -> None:
    try:
        absent()
    except ImportError as missing:
        raise ValueError("the model needs more") from missing


def no_file() -> None:
    try:
        raise FileNotFoundError("config.json")
    except OSError as missing:
        raise ValueError("invalid repository ID or local directory") from missing


def a_key() -> None:
    dict[str, int]()["rope_type"]


def no_backend_could_be_imported() -> None:
    raise ValueError("Selected backend FLASHINFER is not valid. Reason: ['ImportError']")


def answered(function: Callable[[], None]) -> Exception:
    try:
        function()
    except Exception as problem:
        return error_for(problem)
    raise AssertionError


@pytest.mark.parametrize("function", [on_purpose, not_yet, from_a_lookup])
def test_an_error_raised_on_purpose_is_a_refusal(function: Callable[[], None]) -> None:
    assert isinstance(answered(function), ReleaseRefused)


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (by_accident, "where the server starts"),
        (of_the_standard_library, "where the server starts"),
        (no_tokenizer, "where the server starts"),
        (a_key, "where the server starts"),
        (absent, "with torchvision installed"),
        (absent_behind_it, "where the server starts"),
        (no_import, "with torchvision installed"),
        (no_file, "`envgen model pull`"),
        (no_backend_could_be_imported, "where the server starts"),
    ],
)
def test_all_else_is_unknown_with_what_would_make_it_known(function: Callable[[], None], known: str) -> None:
    found = answered(function)
    assert isinstance(found, NotAskable) and known in str(found)
