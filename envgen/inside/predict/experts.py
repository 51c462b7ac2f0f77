"""The release's choice of kernels for a mixture of experts."""

from __future__ import annotations

import importlib
import re
import traceback
from contextlib import suppress
from typing import Any

from envgen.inside.common import Doc
from envgen.inside.predict.release import (
    NotAskable,
    ReleaseRefused,
    asked_for,
    is_refusal,
    message_of,
    named,
)

EXPERTS = "model.layers.3.mlp.experts"  # a layer that no model treats specially
_MIXED = re.compile(r"(.*\blayers\.\d+\..*experts)(\..*)?")


def ask_moe(config: Any, report: Doc) -> Doc | None:
    text = getattr(config.model_config, "hf_text_config", config.model_config.hf_config)
    experts = next(
        (
            getattr(text, name)
            for name in ("num_local_experts", "num_experts", "n_routed_experts")
            if getattr(text, name, None)
        ),
        0,
    )
    if not experts:
        return None  # a dense model
    wanted = asked_for(config, "kernel_config", "moe_backend")
    try:
        where, chosen = experts_method(config, int(experts), text)
    except NotAskable:
        raise
    except Exception as odd:
        # An error of the oracle is the release's answer; one of a layer without weights is not.
        oracle = any(
            "oracle" in one.filename or one.name == "get_mxfp4_backend"
            for one in traceback.extract_tb(odd.__traceback__)
        )
        if oracle and is_refusal(odd) and not lacks_compiled(odd, report):
            raise ReleaseRefused(message_of(odd)) from None
        kind = report["quantization"] or "plain"
        raise NotAskable(
            f"the choice for {kind} experts needs more than a layer's shape and the release's "
            f"Python code: {type(odd).__name__}: {odd}"
        ) from None
    return {"where": where, "backend": str(getattr(chosen, "name", chosen)), "asked_for": wanted}


def lacks_compiled(problem: BaseException, report: Doc) -> bool:
    """Whether a backend may be rejected only because vLLM's compiled code is missing here."""
    names = [str(one["name"]) for one in report.get("stubs", ())]
    missing = any(name.startswith(("vllm.", "torch.ops.")) for name in names)
    return (
        missing
        and re.search(r"current device|not available|No \w+ MoE backend", str(problem)) is not None
    )


def experts_method(config: Any, experts: int, text: Any) -> tuple[str, Any]:
    """The release's own quantization creates the method of a layer of experts, which asks the
    oracle for kernels.
    """
    try:
        kind = named("experts")[1]
    except NotAskable:
        kind = named("older experts")[1]
    described = layer(config, experts, text)
    empty_layer = type(
        kind.__name__, (kind,), {"__init__": importlib.import_module("torch").nn.Module.__init__}
    )()
    values = {
        "moe_config": described,
        "moe_parallel_config": described.moe_parallel_config,
        "activation": "silu",
        "layer_name": name_of(config.quant_config),
        "local_num_experts": described.num_local_experts,
        "global_num_experts": experts,
        "apply_router_weight_on_input": False,
        # The release's own defaults, by which compressed-tensors finds its layers.
        "ckpt_gate_proj_name": "gate_proj",
        "ckpt_up_proj_name": "up_proj",
        "ckpt_down_proj_name": "down_proj",
    }
    for name, value in values.items():
        with suppress(AttributeError):  # a property of this release
            setattr(empty_layer, name, value)
    quantization = config.quant_config
    method = (
        quantization.get_quant_method(empty_layer, values["layer_name"])
        if quantization is not None
        else None
    )
    if method is None:
        method = named("plain experts")[1](described)
    where = f"{type(method).__module__}.{type(method).__name__}"
    for name, value in vars(method).items():
        if name.endswith("_backend") and hasattr(value, "name"):
            return where, value
    raise NotAskable(f"{where} names no backend in this release")


def name_of(quantization: Any) -> str:
    """The name of a layer of experts: where the quantization lists its layers, the first of these."""
    listed = getattr(quantization, "quantized_layers", None)
    for name in map(str, listed or ()):
        found = _MIXED.fullmatch(name)
        if found and not name.startswith("mtp"):
            return found.group(1)
    return EXPERTS


def single_gpu(kind: Any) -> Any:
    """The parallel configuration of one GPU."""
    if hasattr(kind, "make_no_parallel"):
        return kind.make_no_parallel()
    known = {
        "use_ep": False,
        "all2all_backend": "naive",
        "enable_eplb": False,
        "is_sequence_parallel": False,
    }
    sizes = {
        name: 0 if name.endswith("_rank") else 1
        for name in kind.__dataclass_fields__
        if name not in known
    }
    return kind(
        **sizes,
        **{name: value for name, value in known.items() if name in kind.__dataclass_fields__},
    )


def _said(text: Any, default: Any, *names: str) -> Any:
    """What the model's config.json says under the first of the names that it has."""
    for name in names:
        value = getattr(text, name, None)
        if value:
            return value
    return default


def _split(size: int, expert_parallel: bool) -> Any:
    """How the experts are split on ``size`` GPUs."""
    split = single_gpu(named("experts parallel")[1])
    if size == 1:
        return split
    sizes = {name: getattr(split, name) for name in split.__dataclass_fields__}
    if expert_parallel:
        sizes.update(ep_size=size, use_ep=True)
    else:
        sizes["tp_size"] = size
    return type(split)(**sizes)


def layer(config: Any, experts: int, text: Any) -> Any:
    """The configuration of one layer of experts, from the model's config.json."""
    kind = named("experts config")[1]
    parallel = config.parallel_config
    size = int(parallel.tensor_parallel_size)
    expert_parallel = bool(getattr(parallel, "enable_expert_parallel", False)) and size > 1
    split = _split(size, expert_parallel)
    intermediate = int(getattr(text, "moe_intermediate_size", None) or text.intermediate_size)
    gpt_oss = str(getattr(text, "model_type", "")) == "gpt_oss"
    act = str(_said(text, "silu", "mlp_hidden_act", "hidden_activation", "hidden_act"))
    values = {
        "num_experts": experts,
        "num_logical_experts": experts,
        "num_local_experts": experts // (size if expert_parallel else 1),
        "experts_per_token": int(_said(text, 1, "num_experts_per_tok", "top_k_experts")),
        "hidden_dim": int(getattr(text, "moe_latent_size", None) or text.hidden_size),
        "intermediate_size": intermediate,
        "intermediate_size_per_partition": intermediate // (1 if expert_parallel else size),
        "device": "cuda",
        "is_act_and_mul": act != "relu2",  # Nemotron-H's experts
        "routing_method": named("routing")[1].Renormalize,
        "in_dtype": config.model_config.dtype,
        "swiglu_limit": None if gpt_oss else getattr(text, "swiglu_limit", None),
        "has_bias": gpt_oss,
        "moe_parallel_config": split,
        "is_lora_enabled": config.lora_config is not None,
        "moe_backend": getattr(getattr(config, "kernel_config", None), "moe_backend", "auto"),
    }
    fields = {name: one for name, one in kind.__dataclass_fields__.items() if one.init}
    if "activation" in fields:
        kinds = named("activation")[1]
        known = {"relu2": "RELU2_NO_MUL", "gelu": "GELU", "silu": "SILU", "swish": "SILU"}
        if gpt_oss:
            values["activation"] = kinds.SWIGLUOAI
        elif "tanh" in act:
            values["activation"] = getattr(kinds, "GELU_TANH", kinds.GELU)
        else:
            values["activation"] = getattr(kinds, known[act])
    return kind(**{name: value for name, value in values.items() if name in fields})
