"""Models that owners of a Spark run, as questions to a release.

A shipped recipe's model is asked about by envgen's own facts; the others have the published shape with a few layers
(tests/support/shapes). Each has its usual parsers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from envgen.predict.judge import Judgement, judge
from envgen.profile.service import Service
from envgen.recipes.shipped import models

# The device of a question, by its compute capability.
GPUS = {"12.1": ("NVIDIA GB10", 120), "9.0": ("NVIDIA H100 80GB HBM3", 80)}
ABSENT = re.compile(
    r"no gpu|current device$|not available on|is_available|no cuda|driver|without cuda|not compiled", re.I
)
SHAPES = Path(__file__).parent / "shapes"
SHIPPED = {
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3.6-35b-a3b-nvfp4": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "qwen3.6-27b-fp8": "Qwen/Qwen3.6-27B-FP8",
    "nemotron-3-super-120b-nvfp4": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "gemma-4-26b-a4b-nvfp4": "nvidia/Gemma-4-26B-A4B-NVFP4",
}


def compressed(weights: dict[str, Any], layout: str) -> dict[str, Any]:
    """compressed-tensors' block for weights alone."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "quantization_status": "compressed"}  # fmt: skip


# Model -> (reasoning parser, tool parser).
MODELS = {
    "gpt-oss-120b": ("openai_gptoss", "openai"),
    "gpt-oss-20b": ("openai_gptoss", "openai"),
    "qwen3.6-35b-a3b-nvfp4": ("qwen3", "qwen3_coder"),
    "qwen3.6-27b-fp8": ("qwen3", "qwen3_coder"),
    "qwen3-30b-a3b-fp8": ("qwen3", "hermes"),
    "qwen3-30b-a3b-int4": ("qwen3", "hermes"),
    "qwen3-30b-a3b-awq": ("qwen3", "hermes"),
    "qwen3-30b-a3b-nvfp4a16": ("qwen3", "hermes"),
    "qwen3-30b-a3b-mxfp8": ("qwen3", "hermes"),
    "nemotron-3-super-120b-nvfp4": ("nemotron_v3", "qwen3_coder"),
    "nemotron-3-nano-30b-fp8": ("nemotron_v3", "qwen3_coder"),
    "glm-4.5-air-fp8": ("glm45", "glm45"),
    "glm-4.7-flash": ("glm45", "glm47"),
    "gemma-4-26b-a4b-nvfp4": ("gemma4", "gemma4"),
    "minimax-m2.7-nvfp4": ("minimax_m2", "minimax_m2"),
    "deepseek-v4-flash": ("deepseek_v4", "deepseek_v4"),
    "llama-3.3-70b-fp8": ("", "llama3_json"),
}
_GROUP = {"strategy": "group", "symmetric": True, "dynamic": False}
# Other quantizations of one of the shapes.
QUANTIZED: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b-int4": compressed({**_GROUP, "num_bits": 4, "type": "int", "group_size": 128}, "pack-quantized"),
    "qwen3-30b-a3b-awq": {
        "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True,
    },
    "qwen3-30b-a3b-nvfp4a16": compressed(
        {**_GROUP, "num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}, "nvfp4-pack-quantized"
    ),
    "qwen3-30b-a3b-fp8-channel": {
        **compressed({}, "float-quantized"),
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True,
            },
        }},
    },
    "qwen3-30b-a3b-mxfp8": {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]},
}  # fmt: skip
# The repository brings the class of its configuration, as the model's cards tell to trust it.
CODE = """\
from transformers import PretrainedConfig


class MiniMaxM2Config(PretrainedConfig):
    model_type = "minimax_m2"
"""


def gpu_of(capability: str) -> dict[str, Any]:
    """A device of GPUS, as a question has it."""
    title, memory = GPUS[capability]
    return {"name": title, "capability": [int(one) for one in capability.split(".")], "memory": memory << 30}


def refused_for_want_of_a_gpu(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Refusals, of the settings or of other backends, whose reason is that there is no GPU here."""
    others = [one for one in answer["backends"] if "compute capability not supported" not in one["reason"]]
    refused = [one for one in others if one["verdict"] == "refused" and ABSENT.search(one["reason"])]
    return refused + [one for one in answer["refusals"] if ABSENT.search(one["message"])]


def shown(answer: dict[str, Any]) -> str:
    """An answer in a failure's message."""
    return json.dumps({key: answer[key] for key in ("refusals", "unasked", "asked", "notes")}, indent=1)


def judged(answer: dict[str, Any]) -> Judgement:
    """Without the words of ``ready``."""
    return judge(answer, Service(("vllm", "serve", "x")))


def request(name: str, folder: Path) -> dict[str, Any]:
    """What `envgen predict` asks about the model."""
    reasoning, tools = MODELS.get(name, ("", "hermes"))
    model = SHIPPED.get(name, str(folder / name))
    if name not in SHIPPED:
        (folder / name).mkdir()
        shape = "qwen3-30b-a3b-fp8" if name in QUANTIZED else name
        config = json.loads((SHAPES / f"{shape}.json").read_text(encoding="utf-8"))
        config["quantization_config"] = QUANTIZED.get(name, config.get("quantization_config"))
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / name / "configuration_minimax_m2.py").write_text(CODE, encoding="utf-8")
    words = [model, "--max-model-len", "32768", "--trust-remote-code", "--enable-auto-tool-choice"]
    words += ["--tool-call-parser", tools, *(["--reasoning-parser", reasoning] if reasoning else [])]
    gpu = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30}
    return {"words": words, "gpu": gpu, "real": False, "models": dict(models())}
