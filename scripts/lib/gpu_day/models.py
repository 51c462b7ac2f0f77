"""The models that are served and compared: their names, shapes and flags."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from envgen.recipes.shipped import models as shipped_models

TOP = Path(__file__).resolve().parents[3]
NAME = "gpu-day"
MODEL = "openai/gpt-oss-120b"
COMMIT = "0" * 39 + "1"
INSIDE = "/root/.cache/huggingface"  # of the containers
OURS = f"{INSIDE}/{NAME}"

# Models whose published shape is in tests/support/shapes or in a recipe, with what differs in their
# command line.
_DRAFT = {"method": "eagle3", "model": f"{OURS}/gpt-oss-eagle3", "num_speculative_tokens": 3}
_MTP = {"method": "mtp", "num_speculative_tokens": 3}
_DFLASH = {"method": "dflash", "model": f"{OURS}/qwen3.8-dflash2", "num_speculative_tokens": 8}
MODELS: dict[str, dict[str, Any]] = {
    "gpt-oss": {},
    "gpt-oss-draft": {"speculative-config": _DRAFT},
    "llama-3.3-70b-fp8": {},
    "qwen3-30b-a3b-fp8": {},
    "qwen3-30b-a3b-bf16": {},
    "glm-4.5-air-fp8": {},
    "glm-4.7-flash": {},
    "minimax-m2.7-nvfp4": {},
    "nemotron-3-nano-30b-fp8": {},
    "nemotron-3-super-120b": {},
    "qwen3.6-35b-a3b": {"language-model-only": True},
    "qwen3.6-27b-fp8": {"language-model-only": True},
    "qwen3.6-27b-mtp": {"language-model-only": True, "speculative-config": _MTP},
    "qwen3.6-27b-vision": {"limit-mm-per-prompt": {"image": 1, "video": 0}},
    "qwen3.8-27b-dflash2": {"language-model-only": True, "kv-cache-dtype": "fp8", "speculative-config": _DFLASH},
    "qwen3-next-80b-fp8": {},
    "gemma-4-26b": {"language-model-only": True},
    "deepseek-v4-flash": {"kv-cache-dtype": "fp8"},
    "kimi-linear-48b": {"trust-remote-code": True},
    "mimo-v2-flash-fp8": {"trust-remote-code": True},
    "trinity-mini-w4a16": {},
    # Whole, with all of the memory: what the server says of it against the estimate. Not started
    # with the others.
    "gpt-oss-whole": {"enforce-eager": None, "kv-cache-memory-bytes": None, "max-model-len": 131072, "max-num-seqs": 2,
                      "max-num-batched-tokens": 8192, "gpu-memory-utilization": 0.9, "async-scheduling": True,
                      "attention-config": {"backend": "TRITON_ATTN"}},
}  # fmt: skip
WHOLE = "gpt-oss-whole"
_RECIPES = {
    "gpt-oss": MODEL, "gpt-oss-draft": MODEL, WHOLE: MODEL,
    "nemotron-3-super-120b": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "qwen3.6-35b-a3b": "nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.6-27b-fp8": "Qwen/Qwen3.6-27B-FP8",
    "qwen3.6-27b-mtp": "Qwen/Qwen3.6-27B-FP8", "qwen3.6-27b-vision": "Qwen/Qwen3.6-27B-FP8",
    "qwen3.8-27b-dflash2": "nvidia/Qwen3.8-27B-NVFP4",
    "gemma-4-26b": "nvidia/Gemma-4-26B-A4B-NVFP4",
}  # fmt: skip
# Where the tokenizer of gpu_model.py has the marks that models with a vision tower look for.
VISION = {"image_token_id": 200009, "video_token_id": 200010, "vision_start_token_id": 200011,
          "vision_end_token_id": 200013}  # fmt: skip
# Layers of a model that is compared: the fewest with one of each kind.
LAYERS = {"nemotron_h": 8, "gemma4": 6}
FEWEST = 4


def service_of(name: str) -> str:
    """The service of a model that is compared."""
    return "m_" + re.sub(r"[-.]+", "_", name)


def shape(name: str) -> dict[str, Any]:
    """The config.json of a model, cut to a few layers unless it is the whole one."""
    if name in _RECIPES:
        config: dict[str, Any] = json.loads(json.dumps(shipped_models()[_RECIPES[name]]["config"]))
        config.update({key: number for key, number in VISION.items() if key in config})
        return config if name == WHOLE else cut(config)
    bf16 = name.endswith("-bf16")
    path = TOP / "tests/support/shapes" / f"{name.replace('-bf16', '-fp8')}.json"
    config = json.loads(path.read_text())
    if bf16:
        config.pop("quantization_config")
    return cut(config)


def cut(config: dict[str, Any]) -> dict[str, Any]:
    """The same with its first layers; their kinds in turn."""
    text = config.get("text_config") or config
    most = LAYERS.get(str(config.get("model_type")), FEWEST)
    text["num_hidden_layers"] = min(int(text["num_hidden_layers"]), most)
    for key in ("layer_types", "layers_block_type", "hybrid_layer_pattern", "moe_layer_freq"):
        if isinstance(text.get(key), list):
            text[key] = text[key][: text["num_hidden_layers"]]
    if isinstance(text.get("hybrid_override_pattern"), str):
        text["hybrid_override_pattern"] = text["hybrid_override_pattern"][
            : text["num_hidden_layers"]
        ]
    return config


def draft(target: str) -> dict[str, Any]:
    """The config.json of the draft that a recipe names for ``target``, for a target that is cut to
    a few layers.
    """
    config: dict[str, Any] = json.loads(
        json.dumps(shipped_models()["z-lab/Qwen3.8-27B-DFlash2"]["config"])
    )
    layers = shape(target)["text_config"]["num_hidden_layers"]
    config["num_target_layers"] = layers
    config["dflash_config"]["target_layer_ids"] = list(range(layers))
    return config


EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 1, "intermediate_size": 17280,
    "vocab_size": 201088, "draft_vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
    "rope_theta": 150000, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    # The old model runner reads the one, the new one the other.
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}  # fmt: skip
