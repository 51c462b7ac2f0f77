"""Make three tiny Qwen3 with random weights beside /models/tiny, whose tokenizer they take. Runs inside the cpu image.

`embed`, `rank` (a reranker as of this family: one label for a pair of texts), and `spoiled`, which embeds as NaN.
"""

from __future__ import annotations

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

tokenizer = AutoTokenizer.from_pretrained("/models/tiny")
tokenizer.pad_token = "<unk>"
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    num_labels=1,
)  # fmt: skip
embed, rank, spoiled = Qwen3ForCausalLM(config), Qwen3ForSequenceClassification(config), Qwen3ForCausalLM(config)
spoiled.model.norm.weight.data.fill_(float("nan"))
for name, model in (("embed", embed), ("rank", rank), ("spoiled", spoiled)):
    model.to(torch.bfloat16).save_pretrained(f"/models/{name}")
    tokenizer.save_pretrained(f"/models/{name}")
