"""Make a tiny Llama with random weights and its tokenizer, offline. Runs inside the cpu image:

    docker compose -f compose/cpu.yaml run --rm --no-deps -T serve python3 - < make_tiny_model.py

Nothing is downloaded: the tokenizer is trained on the sentences below and the weights come from a fixed seed, so the
model talks nonsense, always the same.
"""

from __future__ import annotations

import pathlib

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TARGET = pathlib.Path("/models/tiny")
TEXT = [
    "A container holds what it was given, and nothing else.",
    "The capital of France is Paris, and the capital of Japan is Tokyo.",
    "A stale kernel is one that was compiled from other bytes than the source has now.",
]
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def main() -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT,
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(TARGET)
    fast.save_pretrained(TARGET)
    print(f"tiny model with random weights in {TARGET}")


if __name__ == "__main__":
    main()
