"""The arguments of `vllm serve`, by the release's own parser and configuration, and the model's
config.json.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
from contextlib import suppress
from typing import Any

from envgen.inside.common import Doc
from envgen.inside.predict.machine import uncompiled
from envgen.inside.predict.release import (
    INSPECTED,
    Lines,
    NotAskable,
    ReleaseRefused,
    error_for,
    model_code,
    named,
)

KDA = "linear_attn_config"  # Kimi Linear's layers with states
LARGEST_CONFIG = 4 << 20  # bytes; released models have a few KiB


def parsed(request: Doc, report: Doc) -> Any:
    """The arguments of `vllm serve`, parsed by the release itself."""
    report["asked"]["parser"], parser = serve_parser()

    def refuse(message: str) -> None:
        unknown = re.search(r"unrecognized arguments: (--[a-z][\w-]*)", message)
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown.group(1), flags, 2, 0.75) if unknown else []
        raise ReleaseRefused(message + (f"; similar: {' '.join(near)}" if near else ""))

    parser.error = refuse
    try:
        return parser.parse_args(list(request["words"]))
    except ReleaseRefused:
        raise
    except SystemExit as problem:
        raise ReleaseRefused(f"the parser ended with exit code {problem.code}") from None
    except Exception as problem:
        raise error_for(problem) from None


def serve_parser() -> tuple[str, Any]:
    """(place, parser) of `vllm serve`."""
    place, make = named("parser")
    return place, make(named("parser class")[1]())


def known_parsers(args: Any, report: Doc) -> None:
    """Check the names of tool and reasoning parsers, as Python's server does first. A plugin may add
    its own, and vLLM's Rust front end has others.
    """
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0").strip("0 "):
        return
    for option, plugin, counts in (
        ("tool-call-parser", "tool_parser_plugin", getattr(args, "enable_auto_tool_choice", False)),
        ("reasoning-parser", "reasoning_parser_plugin", True),
    ):
        name = getattr(args, option.replace("-", "_"), None)
        if not name or not counts or getattr(args, plugin, None):
            continue
        try:
            known = list(named(option)[1].list_registered())
        except Exception:
            report["notes"].append(f"could not check whether this release has the {option} {name}")
            continue
        if known and name not in known:
            raise ReleaseRefused(
                f"invalid {option}: {name} (this release has {', '.join(sorted(known))})"
            )


def cached(repository: str, file: str, revision: str | None) -> str:
    """The path of a file in the Hugging Face cache; "" where it is not there."""
    with suppress(ValueError):  # not the name of a repository
        path = importlib.import_module("huggingface_hub").try_to_load_from_cache(
            repository, file, revision=revision
        )
        return path if isinstance(path, str) else ""
    return ""


def find_config(args: Any, request: Doc, report: Doc, folder: str) -> None:
    """Find the model's config.json, and that of a separate draft."""
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    name = str(args.model)
    model = {"name": name}
    report["model"] = model
    model.update(located(name, getattr(args, "revision", None), request, folder))
    if model["from"] == "envgen":
        args.model = folder
        if getattr(args, "served_model_name", None) is None:
            args.served_model_name = [name]
    find_draft(args, request, report, folder)


def located(name: str, revision: str | None, request: Doc, folder: str) -> Doc:
    """Where a model's config.json is: in its folder, in the Hugging Face cache, or in the request,
    from where it is written into ``folder``. NotAskable without a usable one.
    """
    facts = request["models"].get(name)
    model = {"weights": facts["weights"]} if facts else {}
    if os.path.isdir(name):
        model.update({"from": "folder", "place": f"{name}/config.json"})
    elif place := cached(name, "config.json", revision):
        model.update({"from": "cache", "place": place})
    elif facts:
        model.update({"from": "envgen", "place": f"{folder}/config.json"})
        os.makedirs(folder, exist_ok=True)
        with open(model["place"], "w", encoding="utf-8") as file:
            json.dump(facts["config"], file)
    else:
        raise NotAskable(
            f"the config.json of {name} is neither in the Hugging Face cache nor shipped with "
            "envgen"
        )
    read_config(model["place"])
    return model


# Flags of 0.33 and their keys in the speculative configuration.
_DRAFT_FLAGS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


def find_draft(args: Any, request: Doc, report: Doc, folder: str) -> None:
    """Find the config.json of a separate draft in the same places; without a usable one, nothing is
    asked about it.
    """
    draft = getattr(args, "speculative_config", None)
    model = report["model"]
    for flag, key in _DRAFT_FLAGS.items():
        value = getattr(args, flag, None)
        if value is not None and (draft is None or key not in draft):
            draft = args.speculative_config = dict(draft or {}, **{key: value})
            setattr(args, flag, None)
    if not isinstance(draft, dict):
        return
    model["drafted"] = draft.get("num_speculative_tokens")
    if not draft.get("model"):
        return
    try:
        place = f"{folder}/draft"
        draft_config = located(str(draft["model"]), draft.get("revision"), request, place)
    except NotAskable as odd:
        args.speculative_config = None
        report["unasked"].append({"step": "speculative-config", "why": f"the draft model: {odd}"})
        return
    model.update(draft=draft_config["place"], draft_weights=draft_config.get("weights"))
    if draft_config["from"] == "envgen":
        args.speculative_config = {key: value for key, value in draft.items() if key != "revision"}
        args.speculative_config["model"] = place


def read_config(place: str) -> Doc:
    """The mapping in a config.json. Raises NotAskable for one that is not a file, is too large or
    is damaged.
    """
    if not os.path.isfile(place):
        raise NotAskable(f"{place} is not a file")
    if os.path.getsize(place) > LARGEST_CONFIG:
        raise NotAskable(
            f"{place} has {os.path.getsize(place) >> 20} MiB: no model has such a config.json"
        )
    try:
        with open(place, encoding="utf-8") as file:
            document = json.load(file)
        if not isinstance(document, dict):
            raise ValueError("it is not a mapping")
        return document
    except RecursionError:
        raise NotAskable(f"{place} cannot be read: it is nested too deep") from None
    except (OSError, ValueError) as error:
        raise NotAskable(f"{place} cannot be read: {error}") from None


def configured(args: Any, report: Doc, lines: Lines | None = None) -> Any:
    """The release's whole configuration, with its own checks, but without the tokenizer: kernels
    don't depend on it.
    """
    inspect_here()
    args.skip_tokenizer_init = True
    args.reasoning_parser, args.reasoning_config = "", None  # they need one
    try:
        with uncompiled():  # the release may import layers for it, which name compiled code
            config = (
                named("arguments")[1]
                .from_cli_args(args)
                .create_engine_config(usage_context=as_served())
            )
    except Exception as problem:
        raise error_for(problem, lines) from None
    describe(config, report)
    return config


def describe(config: Any, report: Doc) -> None:
    """Add what the configuration says of the model and its cache; a fact that this release does not
    have is unasked.
    """
    model = config.model_config
    cache = config.cache_config
    hf = getattr(model, "hf_config", None)
    facts = {
        "architectures": lambda: list(getattr(hf, "architectures", None) or []),
        "type": lambda: str(getattr(hf, "model_type", "")),
        "dtype": lambda: str(model.dtype).replace("torch.", ""),
        "head_size": model.get_head_size,
        "mla": lambda: bool(model.use_mla),
        "sinks": lambda: has_sinks(model),
    }
    report["quantization"] = (
        str(model.quantization) if getattr(model, "quantization", None) else None
    )
    report["kv"] = {
        "dtype": str(getattr(cache, "cache_dtype", "")),
        "block_size": getattr(cache, "block_size", None),
    }
    for name, fact in facts.items():
        try:
            report["model"][name] = fact()
        except Exception as odd:
            report["unasked"].append(
                {"step": "model", "why": f"{name}: {type(odd).__name__}: {odd}"}
            )
    report["config_line"] = config_line(config)
    with suppress(Exception):  # another release: memory is not estimated then
        report["size"] = size_of(config, report)


def as_served() -> Any:
    """vLLM's defaults, such as the tokens of a step, depend on how it is used: here by `vllm
    serve`.
    """
    return importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER


def language_model_config(config: Doc) -> Doc:
    """The part of a configuration that describes the language model."""
    inner: Doc = config.get("text_config") or config
    return inner


def size_of(config: Any, report: Doc) -> Doc:
    """What determines the server's memory, after the release's own defaults."""
    model, cache, parallel, steps = (
        getattr(config, name)
        for name in ("model_config", "cache_config", "parallel_config", "scheduler_config")
    )
    text = language_model_config(model.hf_config.to_dict())
    place = report["model"]["place"]
    # Transformers renames some keys, such as Gemma 4's number of heads in full-attention layers.
    text.update(
        {
            name: value
            for name, value in language_model_config(read_config(place)).items()
            if value is not None
        }
    )
    weights = weights_of(os.path.dirname(place))
    dtype = str(model.dtype).replace("torch.", "")
    states = str(getattr(cache, "mamba_ssm_cache_dtype", "float32"))
    if states == "auto":  # of models that name none, such as Qwen3-Next and Kimi Linear
        states = "float32" if text.get(KDA) else dtype
    return {
        "config": {
            name: value
            for name, value in text.items()
            if not isinstance(value, dict) or name == KDA
        },
        "weights": weights or report["model"].get("weights"),
        "published": not weights,
        "context": model.max_model_len,
        "cache_dtype": str(cache.cache_dtype),
        "dtype": dtype,
        "state_dtype": states,
        "share": cache.gpu_memory_utilization,
        "fixed": getattr(cache, "kv_cache_memory_bytes", None),
        "ranks": parallel.tensor_parallel_size,
        "stages": parallel.pipeline_parallel_size,
        "sequences": steps.max_num_seqs,
        # Later releases count every step that is under way: two with async scheduling.
        "batched": getattr(config, "max_in_flight_tokens", steps.max_num_batched_tokens),
        "draft": str(getattr(getattr(config, "speculative_config", None), "method", None) or ""),
        "states": states_of(config, report["model"].get("drafted")),
        "checkpoints": checkpoints(model),
        **size_of_draft(report["model"]),
    }


def states_of(config: Any, drafted: object) -> int | None:
    """The states of a Mamba or GDN layer that a sequence keeps; None: unknown (a state for each
    block).

    MambaSpec.max_memory_usage_bytes: one and one for each drafted token; with a prefix cache
    ("align") one more, and another one in layers that keep a checkpoint of a prefill.
    ``drafted``: tokens, if the draft could not be asked.
    """
    mode = getattr(config.cache_config, "mamba_cache_mode", "none")
    if mode not in ("none", "align"):
        return None
    asked = getattr(getattr(config, "speculative_config", None), "num_speculative_tokens", None)
    tokens = int(asked or (drafted if isinstance(drafted, int) else 0))
    if mode == "none":
        return 1 + tokens
    return 2 + tokens + checkpoints(config.model_config)


def checkpoints(model: Any) -> bool:
    """Whether the model has layers that may keep a state from the middle of a prefill, too: its own
    code has a class of layers with states whose cache differs from the usual one.
    """
    spec = importlib.import_module("vllm.v1.kv_cache_interface").MambaSpec
    if "num_prefill_checkpoint_blocks" not in spec.__dataclass_fields__:
        return False
    usual = importlib.import_module("vllm.model_executor.layers.mamba.abstract").MambaBase
    for kind in vars(model_code(model)).values():
        has_states = isinstance(kind, type) and issubclass(kind, usual)
        if has_states and kind.get_kv_cache_spec is not usual.get_kv_cache_spec:
            return True
    return False


def size_of_draft(model: Doc) -> Doc:
    """Configuration and weights of the model's separate draft; nothing without one."""
    place = model.get("draft")
    if not place:
        return {}
    plain = {
        name: value
        for name, value in language_model_config(read_config(place)).items()
        if not isinstance(value, dict)
    }
    return {
        "draft_config": plain,
        "draft_weights": weights_of(os.path.dirname(place)) or model.get("draft_weights"),
    }


def weights_of(folder: str) -> int | None:
    """Bytes of the model's weights, from the index beside its config.json or the one file; None
    without either.
    """
    index, whole = (
        f"{folder}/{name}" for name in ("model.safetensors.index.json", "model.safetensors")
    )
    if os.path.isfile(index) and os.path.getsize(index) < 100 << 20:
        try:
            with open(index, encoding="utf-8") as file:
                total = int(json.load(file)["metadata"]["total_size"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None  # the rest of the estimate is still valid
        return total if total > 0 else None
    return os.path.getsize(whole) if os.path.isfile(whole) else None


def inspect_here() -> None:
    """Import the model's class in this process. vLLM uses a second one to keep CUDA out, which
    takes twice as long.
    """
    try:
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        apart = registry._run_in_subprocess
    except Exception:
        return  # another release

    def here_first(function: Any) -> Any:
        try:
            return function()
        except Exception as problem:
            INSPECTED.append(f"{type(problem).__name__}: {problem}")
            return apart(function)

    registry._run_in_subprocess = here_first


def config_line(config: Any) -> str | None:
    """The first line of the engine's core log, with the whole configuration, from the release's own
    text.
    """
    try:
        core = importlib.util.find_spec("vllm.v1.engine.core")
        with open(str(core.origin if core else ""), encoding="utf-8") as file:
            words = re.search(
                r'"(Initializing a V1 LLM engine \(v%s\) with config: %s)"', file.read()
            )
        version = sys.modules["vllm"].__dict__.get("__version__", "")
        return words.group(1) % (version, config) if words else None
    except Exception:
        return None


def has_sinks(model: Any) -> bool:
    """Whether the release's own code of this model passes attention sinks to its attention layers."""
    try:
        known = importlib.import_module("vllm.model_executor.models").ModelRegistry.models
        module = next(known[name].module_name for name in model.architectures if name in known)
        spec: Any = importlib.util.find_spec(module)
        with open(spec.origin, encoding="utf-8") as file:  # read, because its import needs kernels
            return bool(re.search(r"\bsinks\s*=", file.read()))
    except Exception:
        return str(getattr(model.hf_config, "model_type", "")) == "gpt_oss"
