"""Builds the model by the release's own code on the meta device, where each layer chooses its
kernels.

No weight is loaded and nothing is computed. Then the layers hold the kernels of a server's layers.
"""

from __future__ import annotations

import importlib
import re
from contextlib import contextmanager
from typing import Any, Iterator

from envgen.inside.common import Doc
from envgen.inside.predict.machine import has_compiled_code, on_meta
from envgen.inside.predict.release import Lines, asked_for, named

GROUPS = {
    "_WORLD": 0,
    "_TP": "tensor_parallel_size",
    "_EP": 0,
    "_PP": 1,
    "_DP": "data_parallel_size",
    "_EPLB": 0,
    "_DCP": "decode_context_parallel_size",
    "_PCP": "prefill_context_parallel_size",
}
# The subject of a log line, by its logger and text; the first match counts.
SUBJECTS = (
    ("vision", r"\bvit attention\b|MMEncoderAttention"),
    ("mamba", r"\.mamba\.|\bGDN\b|Mamba"),
    ("moe", r"fused_moe|\bMoE\b|\bexperts\b|quantization\.mxfp4"),
    ("linear", r"kernels\.linear|quantization\.kernels|\bGEMM\b|Linear\w*Kernel"),
    ("attention", r"attention|platforms\.cuda"),
)
KERNELS = ("vllm.model_executor.kernels.linear", "vllm.model_executor.layers.quantization.kernels")


class OneWorker:
    """A process group of the release, with this process as the first of ``size`` workers."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.ranks = list(range(size))
        self.rank = self.rank_in_group = self.local_rank = self.first_rank = 0
        self.last_rank = size - 1
        self.next_rank = 1 % size
        self.prev_rank = size - 1
        self.is_first_rank = True
        self.is_last_rank = size == 1
        self.device_group = self.cpu_group = self
        self.device_communicator = self.mq_broadcaster = None
        self.use_device_communicator = False
        self.unique_name = "envgen"

    def size(self) -> int:
        return self.world_size


@contextmanager
def fake_process_groups(config: Any) -> Iterator[None]:
    """Sets the release's process groups, with this process as the first; it builds all pipeline
    stages.
    """
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    parallel = config.parallel_config
    every = int(parallel.tensor_parallel_size) * int(parallel.data_parallel_size)
    before = {name: getattr(state, name) for name in GROUPS if hasattr(state, name)}
    for name in before:
        size: Any = GROUPS[name]
        setattr(
            state,
            name,
            OneWorker(
                (size or every) if isinstance(size, int) else int(getattr(parallel, size, 1) or 1)
            ),
        )
    try:
        yield
    finally:
        for name, group in before.items():
            setattr(state, name, group)


def build(config: Any) -> Any:
    """The model of the configuration, without weights."""
    torch = importlib.import_module("torch")
    initialize = named("model")[1]
    config.compilation_config.static_forward_context.clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with fake_process_groups(config), on_meta():
            return initialize(config)
    finally:
        torch.set_default_dtype(before)


def ask_layers(config: Any, report: Doc, lines: Lines) -> None:
    """Ask the layers for linear kernels, Mamba and GDN, and for what the selectors did not tell.

    An error here is not a refusal: where the model can't be built, a note has the reason.
    """
    left = [one["step"] for one in report["unasked"] if one["step"] in ("attention", "moe")]
    if not has_compiled_code():
        why = "they need vLLM's compiled code and PyTorch's CUDA, which the profile's image has"
        report["notes"].append(f"linear kernels, Mamba and GDN backends are unknown here: {why}")
        return
    before = lines.kept
    lines.kept = []
    try:
        model = build(config)
    except Exception as problem:
        why = str(problem).strip().partition("\n")[0][:300]
        report["notes"].append(
            "the kernels of the layers are unknown: the model can't be built here: "
            f"{type(problem).__name__}: {why}"
        )
        lines.kept = before
        return
    logged = lines.kept
    lines.kept = before
    kernels = chosen(model, config)
    for step, kernel in kernels.items():
        if kernel["backend"] and (step in left or step in ("linear", "mamba")):
            report["asked"][step] = kernel
            report["unasked"] = [other for other in report["unasked"] if other["step"] != step]
            lines.kept += [dict(line, step=step) for line in logged if subject(line) == step]


def subject(line: Doc) -> str:
    """The subject of a log line: one of SUBJECTS, or ""."""
    words = f"{line['logger']} {line['text']}"
    return next((name for name, pattern in SUBJECTS if re.search(pattern, words)), "")


def chosen(model: Any, config: Any) -> dict[str, Doc]:
    """Step -> the kernels in the layers of the model."""
    held: dict[str, list[str]] = {"attention": [], "moe": [], "linear": [], "mamba": []}
    for layer in model.modules():
        decode = getattr(layer, "gdn_decode_kernel", None)
        prefill = getattr(layer, "gdn_prefill_backend", None)
        if prefill is not None and hasattr(layer, "mamba_type"):
            held["mamba"].append(
                f"GDN prefill {prefill}" + (f", decode {decode}" if decode else "")
            )
        elif hasattr(layer, "mamba_type"):
            backend = getattr(getattr(config, "mamba_config", None), "backend", None)
            if backend is not None:
                held["mamba"].append(str(getattr(backend, "value", backend)))
        elif hasattr(layer, "get_attn_backend") and not type(layer).__name__.endswith("Cache"):
            held["attention"].append(str(layer.get_attn_backend().get_name()))
        method = getattr(layer, "quant_method", None)
        for part in (method, getattr(layer, "scheme", None)):
            for name, value in vars(part).items() if hasattr(part, "__dict__") else ():
                if type(value).__module__.startswith(KERNELS) and type(value).__name__.endswith(
                    "Kernel"
                ):
                    held["linear"].append(type(value).__name__)
                elif (
                    "MoE" in type(part).__name__
                    and name.endswith("_backend")
                    and hasattr(value, "name")
                ):
                    held["moe"].append(str(value.name))
    where = f"the layers of {type(model).__name__}"
    wanted = {
        "attention": ("attention_config", "backend"),
        "moe": ("kernel_config", "moe_backend"),
        "linear": ("kernel_config", "linear_backend"),
        "mamba": ("mamba_config", "backend"),
    }
    return {
        step: {
            "where": where,
            "backend": " + ".join(dict.fromkeys(names)),
            "asked_for": None if step == "mamba" else asked_for(config, *wanted[step]),
        }
        for step, names in held.items()
    }
