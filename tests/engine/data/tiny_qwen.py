"""Make a tiny Qwen3.6-MoE with random weights, its tokenizer and chat template, in a Hugging Face cache. Runs inside
the cpu image, from standard input; its arguments: the cache, the repository, the commit.

The architecture is that of Qwen3.6-35B-A3B: three layers of gated delta nets to one of attention, experts, a vision
tower. The CPU's kernels of a delta net take heads of 128, as the real model has them. The layers are random; embedding
and last layer are such that `<think>` is followed by ANSWER, each piece of which is one token.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

TEXT = ["The capital of France is Paris, and the capital of Japan is Tokyo.", "system user assistant"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>"]  # fmt: skip
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SAID = ["France has one capital.", "\n\nI look at the weather.",
        "\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"]  # fmt: skip
ANSWER = ["<think>", SAID[0], "</think>", SAID[1], "<tool_call>", SAID[2], "</tool_call>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>"
)
PIXELS = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
          "size": {"shortest_edge": 1024, "longest_edge": 65536}, "processor_class": "Qwen3VLProcessor"}  # fmt: skip


def main(cache: str, repo: str, commit: str) -> None:
    top = pathlib.Path(cache, "hub", "models--" + repo.replace("/", "--"))
    target = top / "snapshots" / commit
    (top / "refs").mkdir(parents=True)
    (top / "refs/main").write_text(commit)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL + MARKS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT
    )
    fast.add_tokens(SAID)
    ids = fast.get_vocab()

    torch.manual_seed(0)
    config = Qwen3_5MoeConfig(
        text_config={
            "vocab_size": len(fast), "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
            "max_position_embeddings": 262144, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                                "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        },
        vision_config={"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
                       "num_position_embeddings": 64},
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    model = Qwen3_5MoeForConditionalGeneration(config).to(torch.bfloat16)
    embedding = model.get_input_embeddings().weight.data
    last = model.get_output_embeddings().weight.data
    embedding.normal_()
    last.normal_()
    last[: len(SPECIAL + MARKS) + 256] = 0  # no mark and no single byte: whatever is asked is answered with words
    for one, following in itertools.pairwise(ANSWER):
        last[ids[following]] = embedding[ids[one]]
    model.save_pretrained(target)
    fast.save_pretrained(target)
    for name, kind in (("preprocessor", "image"), ("video_preprocessor", "video")):
        value = {"image": "Qwen2VLImageProcessorFast", "video": "Qwen3VLVideoProcessor"}[kind]
        (target / f"{name}_config.json").write_text(json.dumps({**PIXELS, f"{kind}_processor_type": value}))


if __name__ == "__main__":
    main(*sys.argv[1:])
