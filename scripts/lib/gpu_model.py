"""Runs in the image: a model of gpt-oss's real width, in a Hugging Face cache.

usage: gpu_model.py CONFIG TOKENIZER LAYERS SNAPSHOT

CONFIG is gpt-oss's config.json, TOKENIZER a folder with its tokenizer or its vocabulary
(o200k_base.tiktoken). Real vocabulary, 128 experts in MXFP4 blocks; embedding and last layer are
chained so that it answers "Paris" in Harmony, as completion and as chat. All else is random: large
enough that attention, sinks and experts change the answers, and small enough that rounding does
not: BF16 against FP32 diverges by 0.003 nats in the mean, without the sinks by 0.2, a window of
half the size by 0.6 after 300 tokens (asked of Transformers, 2 layers, 16 and 32 experts). Only
what depends on shapes and formats is that of gpt-oss.
"""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMED = {
    199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain", 200005: "channel",
    200006: "start", 200007: "end", 200008: "message", 200012: "call", 200018: "endofprompt",
    # Reserved in gpt-oss's own; the models with a vision tower that are compared look for them.
    200009: "image_pad", 200010: "video_pad", 200011: "vision_start", 200013: "vision_end",
}  # fmt: skip
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}<|message|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def tokenizer(source: Path, target: Path) -> Any:
    """The tokenizer of ``source``, saved to ``target`` and to the models beside it; made of the
    vocabulary where there
    is only that."""
    transformers: Any = importlib.import_module("transformers")
    if not (source / "tokenizer.json").exists():
        slow: Any = importlib.import_module("transformers.convert_slow_tokenizer")
        made = slow.TikTokenConverter(
            vocab_file=str(source / "o200k_base.tiktoken"), pattern=PATTERN
        ).converted()
        added: Any = importlib.import_module("tokenizers").AddedToken
        names = [
            f"<|{NAMED.get(number, f'reserved_{number}')}|>" for number in range(199998, 200019)
        ]
        made.add_special_tokens([added(name, special=True, normalized=False) for name in names])
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, bos_token="<|startoftext|>", eos_token="<|return|>", pad_token="<|endoftext|>",
            chat_template=CHAT,
        )  # fmt: skip
        fast.save_pretrained(source)
    models = [one.parent for one in source.parent.glob("*/config.json")]
    for path in source.iterdir():
        for folder in (target, *models) if path.suffix in (".json", ".jinja") else ():
            shutil.copyfile(path, folder / path.name)
    return transformers.PreTrainedTokenizerFast.from_pretrained(source)


class Weights:
    """The tensors, under the names of the checkpoint."""

    def __init__(self, config: dict[str, Any], words: Any) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.config, self.words, self.tensors = config, words, dict[str, Any]()
        self.device = "cuda" if self.torch.cuda.is_available() else "cpu"
        self.torch.manual_seed(0)
        self._first()
        for layer in range(config["num_hidden_layers"]):
            self._layer(f"model.layers.{layer}.")

    def _random(self, *shape: int, scale: float = 0.01) -> Any:
        return (self.torch.randn(*shape, device=self.device) * scale).to(self.torch.bfloat16)

    def _first(self) -> None:
        # The first words of a place are one to three nats apart, as a trained model's, those of the
        # chain, too: a chain of full strength makes a place certain, and hides what a kernel
        # changes. The longest prompts end in one.
        vocabulary, hidden = self.config["vocab_size"], self.config["hidden_size"]
        embedding, head = (
            self._random(vocabulary, hidden, scale=1),
            self._random(vocabulary, hidden, scale=0.09),
        )
        # Replies of characters' parts and of markup come in one piece, and have no decode rate.
        texts = self.words.batch_decode([[n] for n in range(vocabulary)], skip_special_tokens=True)
        head[[n for n, text in enumerate(texts) if not text or "\ufffd" in text]] = 0
        seen = set[int]()

        def chain(*names: str) -> None:
            numbers = [
                self.words(name, add_special_tokens=False)["input_ids"][-1] for name in names
            ]
            for number, following in itertools.pairwise(numbers):
                if following not in seen:
                    head[following] = 0
                    seen.add(following)
                head[following] += 0.0135 * embedding[number]

        chain("assistant", "<|channel|>", "final", "<|message|>", " Paris", ".", "<|return|>")
        chain(" is", " Paris")
        ones = self.torch.ones(hidden, device=self.device, dtype=self.torch.bfloat16)
        self.tensors |= {
            "model.embed_tokens.weight": embedding,
            "lm_head.weight": head,
            "model.norm.weight": ones,
        }

    def _layer(self, place: str) -> None:
        config, torch, device = self.config, self.torch, self.device
        hidden, experts, inner = (
            config["hidden_size"],
            config["num_local_experts"],
            config["intermediate_size"],
        )
        head, queries, keys = (
            config["head_dim"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
        )
        found = dict[str, Any]()
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{name}.weight"] = torch.ones(hidden, device=device, dtype=torch.bfloat16)
        for name, many in (("q", queries * head), ("k", keys * head), ("v", keys * head)):
            found[f"self_attn.{name}_proj.weight"] = self._random(many, hidden, scale=0.03)
            found[f"self_attn.{name}_proj.bias"] = self._random(many)
        found["self_attn.o_proj.weight"] = self._random(hidden, queries * head, scale=0.01)
        found["self_attn.o_proj.bias"] = self._random(hidden)
        found["self_attn.sinks"] = self._random(queries, scale=2)
        found["mlp.router.weight"] = self._random(experts, hidden, scale=0.1)
        found["mlp.router.bias"] = self._random(experts)
        for name, rows, columns, exponent in (
            ("gate_up_proj", 2 * inner, hidden, 120), ("down_proj", hidden, inner, 118)
        ):  # fmt: skip
            blocks, scales = (experts, rows, columns // 32, 16), (experts, rows, columns // 32)
            found[f"mlp.experts.{name}_blocks"] = torch.randint(
                0, 256, blocks, device=device, dtype=torch.uint8
            )
            found[f"mlp.experts.{name}_scales"] = torch.full(
                scales, exponent, device=device, dtype=torch.uint8
            )
            found[f"mlp.experts.{name}_bias"] = self._random(experts, rows)
        self.tensors |= {place + name: tensor for name, tensor in found.items()}


def main(config_file: Path, source: Path, layers: int, snapshot: Path) -> None:
    """Write the snapshot, and the branch that names it."""
    config = json.loads(config_file.read_text())
    config["num_hidden_layers"] = layers
    config["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    snapshot.mkdir(parents=True, exist_ok=True)
    words = tokenizer(source, snapshot)
    (snapshot / "config.json").write_text(json.dumps(config))
    generation = {"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999, 200012],
                  "pad_token_id": 199999}  # fmt: skip
    (snapshot / "generation_config.json").write_text(json.dumps(generation))
    made = Weights(config, words)
    save: Any = importlib.import_module("safetensors.torch").save_file
    tensors = {name: tensor.cpu().contiguous() for name, tensor in made.tensors.items()}
    save(tensors, snapshot / "model.safetensors", metadata={"format": "pt"})
    branches = snapshot.parent.parent / "refs"
    branches.mkdir(exist_ok=True)
    (branches / "main").write_text(snapshot.name)
    print(
        f"{sum(path.stat().st_size for path in snapshot.iterdir()) / 1e9:.1f} GB, {layers} layers, on {made.device}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
