"""Faults in a running vLLM, for tests/engine/test_answers.py: an extension of its workers. Runs in the server.

`python3 spoil.py` makes the model: a small Mistral with random weights, a window of 64 tokens, and probabilities that
are far from equal, so that a fault has something to change.
"""

from __future__ import annotations

import pathlib
from typing import Any

TARGET, TOKENIZER = "/models/wide", "/models/tiny"


def make() -> None:
    import torch
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, sliding_window=64, initializer_range=0.2,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.8)
    model.to(torch.bfloat16).save_pretrained(TARGET)
    tokenizer.save_pretrained(TARGET)


class Spoil:
    """Methods for POST /collective_rpc. Each says what was there before."""

    model_runner: Any

    def scale(self, factor: str) -> str:
        """Multiply weights of one layer, as a scale that was read wrong does; a norm's, as others are packed."""
        import torch

        weight = self.model_runner.model.model.layers[1].post_attention_layernorm.weight
        before = float(weight.mean())
        with torch.no_grad():
            weight.mul_(float(factor))
        return str(before)

    def sinks(self, value: str) -> str:
        """Give every head of all layers a sink of this size; `none`: a kernel that drops them."""
        import torch

        for layer in self.model_runner.model.model.layers:
            kernel = layer.self_attn.attn.impl
            made = value != "none" and torch.full((kernel.num_heads,), float(value), dtype=torch.bfloat16)
            kernel.sinks = made if value != "none" else None
        return value

    def window(self, size: str) -> str:
        """Let all layers see as many tokens; -1: all."""
        before = set()
        for layer in self.model_runner.model.model.layers:
            before.add(layer.self_attn.attn.impl.sliding_window)
            layer.self_attn.attn.impl.sliding_window = int(size)
        return str(before)


if __name__ == "__main__":
    make()
    print(sorted(path.name for path in pathlib.Path(TARGET).iterdir()))
