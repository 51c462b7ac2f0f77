"""What vLLM's selector does not ask of b12x: its pages, and a decode kernel for the size of the heads."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from envgen.inside.predict.attention import ask_b12x
from envgen.inside.predict.release import ReleaseRefused

BACKEND = types.SimpleNamespace(
    supports_block_size=lambda one: one in (64, 128), get_preferred_block_size=lambda _: 128
)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    def select(**facts: Any) -> None:
        if facts["head_dim_qk"] == 64:
            raise ValueError("no valid tile")

    traits: Any = types.ModuleType("b12x.attention.paged.traits")
    torch: Any = types.ModuleType("torch")
    traits.select_paged_forward_traits, torch.device = select, lambda *words: words
    for name, module in (("b12x.attention.paged.traits", traits), ("torch", torch)):
        monkeypatch.setitem(sys.modules, name, module)
    return traits


def model(size: int) -> Any:
    return types.SimpleNamespace(get_head_size=lambda: size, dtype="bfloat16")


def test_pages_that_its_layers_refuse_are_refused_with_the_flag(library: Any) -> None:
    with pytest.raises(ReleaseRefused, match="--block-size 128"):
        ask_b12x(model(128), BACKEND, 16)
    ask_b12x(model(128), BACKEND, 64)


def test_heads_without_a_decode_kernel_are_refused_in_its_own_words(library: Any) -> None:
    with pytest.raises(ReleaseRefused, match="heads of 64: no valid tile"):
        ask_b12x(model(64), BACKEND, 128)


def test_another_version_of_the_library_refuses_nothing(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(library, "select_paged_forward_traits")
    ask_b12x(model(64), BACKEND, 128)
    ask_b12x(model(64), types.SimpleNamespace(), 16)
