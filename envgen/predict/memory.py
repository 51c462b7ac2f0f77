"""Estimate the memory of a model's cache and weights from its configuration. None: unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from envgen.binding import JsonDict, JsonObject

# The engine's memory besides weights and cache: CUDA's context, activations, graphs, workspaces. On
# a GPU with its own memory 1.5 to 2.1 GiB were seen; on unified memory public measurements are 5.4
# to 6.7 GiB, and loaders that keep buffers take 4.4 GiB more (docs/seen.md).
DISCRETE = 2 << 30
UNIFIED = 6 << 30
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
# tokens; a block of a model with states is a multiple of so many: of MLA, of layers that keep a
# checkpoint of a prefill (Hopper's kernels), of others
_MLA_BLOCK = 128
_CHECKPOINT_BLOCK = 64
_BLOCK = 16
_UNKNOWN = "unknown for this model's kinds of layers"


@dataclass(frozen=True)
class KvCost:
    """The cache of a sequence on one GPU, in bytes: ``state`` for any length, the rest for each
    token.
    """

    each_token: int  # layers with full attention
    window_token: int = 0  # layers with a sliding window
    window: int = 0
    state: int = 0  # Mamba and GDN layers
    block: int = 1  # tokens of a block, as large as a state

    def sequence(self, tokens: int, batched: int = 0) -> int:
        """Bytes of a sequence. A layer with a window keeps the window and the tokens of one step."""
        kept = min(tokens, self.window - 1 + batched) if self.window else tokens
        whole = -(-tokens // self.block) * self.block
        return self.each_token * whole + self.window_token * kept + self.state

    def largest(self, room: int, most: int, batched: int = 0) -> int:
        """The longest sequence, up to ``most`` tokens, that fits ``room`` bytes; 0: none."""
        low = 0
        high = most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence(middle, batched) <= room:
                low = middle
            else:
                high = middle - 1
        return low


def cache_of(
    config: JsonObject,
    cache_dtype: str,
    *,
    ranks: int = 1,
    dtype: str = "bfloat16",
    draft: int = 0,
    beside: int = 0,
    states: int | None = 1,
    state_dtype: str = "float32",
    checkpoints: bool = True,
) -> KvCost | None:
    """The cache of a model, by its config.json, on one of ``ranks`` GPUs; None if unknown.

    ``cache_dtype``: vLLM's ``--kv-cache-dtype``; ``auto`` is ``dtype``, the model's own. ``draft``:
    layers of a draft with the model's shape (MTP) and full attention; ``beside``: bytes for each
    token of a separate one. ``states``: of each Mamba or GDN layer that a sequence keeps (None:
    unknown); ``state_dtype``: of their recurrent part.
    """
    text = _text(config)
    counts = _counts(text)
    if counts is None:
        return None
    full, windowed, linear = counts
    # What any of these does not say makes all unknown.
    width = _width(dtype if cache_dtype == "auto" else cache_dtype)
    window = _number(text, "sliding_window") if windowed else 0
    index = _index(text)
    state: int | None = 0
    kept: int | None = 0
    if linear:
        state = _state(text, ranks, _width(dtype), _DATA["bytes"].get(state_dtype))
        kept = states
    step = _CHECKPOINT_BLOCK if checkpoints else _BLOCK
    rank = _number(text, "kv_lora_rank")
    if rank is None:
        windowed_pair = _pair(text, ranks, "swa_")
        full_pair = _pair(text, ranks, "global_")
    else:  # MLA: each GPU has the one vector for all heads
        rope = _number(text, "qk_rope_head_dim")
        if rope is None or cache_dtype not in ("auto", "bfloat16") or windowed:
            return None
        windowed_pair = full_pair = rank + rope
        step = _MLA_BLOCK
    if width is None or window is None or index is None or state is None or kept is None:
        return None
    if windowed_pair is None or full_pair is None:
        return None
    token = full_pair * width + index
    if beside % token == 0:  # its layers are like the model's, and share their groups
        draft = draft + beside // token
        beside = 0
    full, windowed, linear = _padded(full + draft, windowed, linear)
    # A state's page is as large as a block of attention, which grows to it.
    block = -(-state // (token * step)) * step
    return KvCost(
        each_token=token * full + beside,
        window_token=windowed_pair * width * windowed,
        window=window,
        state=token * block * linear * kept,
        block=max(block, 1),
    )


def _counts(text: JsonObject) -> tuple[int, int, int] | None:
    """The layers with full attention, with a window and with a state; None if unknown."""
    layers = _layers(text)
    if layers is None or any(text.get(name) for name in _DATA["other_caches"]):
        return None
    full = layers.count("full_attention")
    windowed = layers.count("sliding_attention")
    linear = sum(kind in _DATA["states"] for kind in layers)
    without = sum(kind in _DATA["no_cache"] for kind in layers)
    if full + windowed + linear + without != len(layers):
        return None
    return full, windowed, linear


def _padded(*kinds: int) -> list[int]:
    """The layers of each kind as vLLM counts them: in groups of one size, which padding layers
    fill.
    """
    there = [count for count in kinds if count]
    if len(there) < 2:
        return list(kinds)
    least = min(there)
    most = max(there)
    group = most if most < least * 1.5 else least
    return [-(-count // group) * group for count in kinds]


def _text(config: JsonObject) -> JsonObject:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _number(text: JsonObject, *names: str) -> int | None:
    for name in names:
        number = text.get(name)
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 1 << 60:
            return number
    return None


def _width(dtype: str) -> int | None:
    return (
        1
        if dtype.startswith("fp8") and "_mla" not in dtype
        else _DATA["bytes"].get(dtype.removeprefix("torch."))
    )


def _layers(text: JsonObject) -> list[str] | None:
    """The kind of each layer."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_DATA["pattern"].get(one, one) for one in pattern]
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list):
        return ["full_attention" if one == "attention" else str(one) for one in kinds]
    many = _number(text, "num_hidden_layers")
    if many is None or many > 1000:
        return None
    if any(text.get(name) for name in _DATA["unclear"]):
        return None
    listed = text.get("attn_type_list") or [1]  # MiniMax: 0 is a linear layer
    if not isinstance(listed, list) or any(one != 1 for one in listed):
        return None
    linear = _kimi_linear(text, many)
    return ["linear_attention"] * linear + ["full_attention"] * (many - linear)


def _kimi_linear(text: JsonObject, many: int) -> int:
    """The number of Kimi Linear's linear layers, which it lists by their numbers, from 1 on."""
    config = text.get("linear_attn_config")
    if not isinstance(config, Mapping):
        return 0
    listed = config.get("kda_layers")
    if not isinstance(listed, list):
        return 0
    numbers = range(1, many + 1)
    return sum(number in listed for number in numbers)


def _own_draft(text: JsonObject) -> int:
    """Attention layers of the checkpoint's own draft (multi-token prediction); vLLM loads one
    module.
    """
    count = _number(text, "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
    if not count:
        return 0
    pattern = text.get("mtp_hybrid_override_pattern")
    return pattern.count("*") if isinstance(pattern, str) else 1


def _pair(text: JsonObject, ranks: int, kind: str) -> int | None:
    """Elements of a token's key and value on one GPU. ``kind``: prefix of the keys for one kind of
    attention, where a model has any.
    """
    names = (f"num_{kind}key_value_heads", f"{kind}num_key_value_heads", "num_key_value_heads")
    heads = _number(text, *names, "num_attention_heads")
    size = _number(text, f"{kind}head_dim", "head_dim")
    if size is None:
        hidden = _number(text, "hidden_size")
        many = _number(text, "num_attention_heads")
        size = hidden // many if hidden and many else None
    if not heads or not size:  # a size of 0: more heads than elements
        return None
    values = _number(text, f"{kind}v_head_dim", "v_head_dim") or size
    return max(heads // ranks, 1) * (size + values)


def _index(text: JsonObject) -> int | None:
    """Bytes of a token's part in the index of Qwen's sparse attention, in bfloat16 on each GPU; 0
    without an index.
    """
    if not text.get("indexer_n_heads"):
        return 0
    size = _number(text, "indexer_head_dim")
    ratio = _number(text, "indexer_compress_ratio")
    return 2 * size // ratio if size and ratio else None


def _state(text: JsonObject, ranks: int, wide: int | None, kept: int | None) -> int | None:
    """Bytes of a Mamba-2 or GDN layer's state: ``kept`` for an element, ``wide`` for one of the
    convolution.
    """
    if wide is None or kept is None:
        return None
    kda = text.get("linear_attn_config")
    if isinstance(kda, Mapping):
        names = ("num_heads", "head_dim", "short_conv_kernel_size")
        many, dim, last = (_number(kda, name) or 0 for name in names)
        return many * dim * (dim * kept + 3 * (last - 1) * wide) // ranks or None
    values = _number(text, "linear_num_value_heads")
    if values is not None:
        keys, key, value = (
            _number(text, f"linear_{one}")
            for one in ("num_key_heads", "key_head_dim", "value_head_dim")
        )
        taps = _number(text, "linear_conv_kernel_dim")
        if keys is None or key is None or value is None or taps is None:
            return None
        recurrent = values * key * value * kept
        convolved = (2 * keys * key + values * value) * (taps - 1) * wide
        return (recurrent + convolved) // ranks
    heads, size, state = (
        _number(text, one) for one in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    )
    groups = _number(text, "n_groups")
    taps = _number(text, "conv_kernel")
    if heads is None or size is None or state is None or groups is None or taps is None:
        return None
    recurrent = heads * size * state * kept
    convolved = (heads * size + 2 * groups * state) * (taps - 1) * wide
    return (recurrent + convolved) // ranks


def _draft_beside(size: JsonObject, ranks: int) -> int | None:
    """A separate draft's bytes of cache for each token on one GPU; None: unknown."""
    config = size.get("draft_config")
    if not isinstance(config, Mapping):
        return None
    dtype = str(size.get("dtype"))
    cache = cache_of(config, str(size.get("cache_dtype")), ranks=ranks, dtype=dtype)
    return None if cache is None else cache.each_token + cache.window_token


@dataclass(frozen=True)
class Estimate:
    """The memory of a server on one GPU, in bytes."""

    gpu: int
    share: float  # gpu-memory-utilization
    context: int
    sequences: int
    batched: int
    weights: int | None
    cache: KvCost | None
    fixed: int | None = None  # kv-cache-memory-bytes
    # "own" (the checkpoint's, MTP) and "counted" are in the figures, of "cache" only its cache;
    # another one is not.
    draft: str = ""
    engine: int = UNIFIED
    published: bool = False  # ``weights`` is the published figure, not the size of files

    @property
    def sequence(self) -> int | None:
        """The cache of one sequence of full length; vLLM does not start without room for it."""
        return None if self.cache is None else self.cache.sequence(self.context, self.batched)

    @property
    def room(self) -> int | None:
        """The memory for the cache."""
        if self.fixed is not None:
            return self.fixed
        return (
            None
            if self.weights is None
            else int(self.gpu * self.share) - self.weights - self.engine
        )

    @property
    def least(self) -> int | None:
        """The least free memory: weights, engine, and one full sequence or the fixed cache."""
        cache = self.sequence if self.fixed is None else self.fixed
        return None if cache is None or self.weights is None else self.weights + self.engine + cache

    @property
    def context_that_fits(self) -> int | None:
        """The longest sequence that fits, up to ``context``."""
        if self.cache is None or self.room is None:
            return None
        return self.cache.largest(max(self.room, 0), self.context, self.batched)

    def short(self, free: int) -> str | None:
        """A warning if ``free`` bytes of unified memory are too few."""
        if self.least is None or self.least <= free:
            return None
        return f"memory: at least {_size(self.least)} needed, {_size(free)} available (page cache included)"

    def document(self) -> JsonDict:
        """The estimate for `--json`: bytes on one GPU; null: unknown, and why."""
        names = (
            "engine",
            "weights",
            "sequence",
            "sequences",
            "room",
            "least",
            "context",
            "context_that_fits",
            "draft",
        )
        document = {name: getattr(self, name) for name in names}
        return {**document, "unknown": _UNKNOWN if self.sequence is None else ""}

    def lines(self) -> list[str]:
        """The estimate as text."""
        included = {"": "", "own": ", draft included", "counted": ", draft included"}
        included["cache"] = ", the draft's weights not counted"
        draft = included.get(self.draft, ", draft not counted")
        about = "about " if self.published and self.weights is not None else ""
        texts = [f"weights {about}{_size(self.weights)}, engine about {_size(self.engine)}{draft}"]
        if (sequence := self.sequence) is None:
            return [*texts, f"KV cache: {_UNKNOWN}"]
        every = (
            f"; {self.sequences} such sequences {_size(sequence * self.sequences)}"
            if self.sequences > 1
            else ""
        )
        texts.append(f"KV cache {_size(sequence)} for {self.context} tokens{every}")
        room = self.room
        longest = self.context_that_fits
        if room is None or longest is None or self.least is None:
            return texts
        limit = (
            "--kv-cache-memory-bytes" if self.fixed is not None else f"utilization {self.share:g}"
        )
        if longest < self.context:
            share = self.least / self.gpu
            need = f"{self.context} need " + (
                f"utilization {share:.2f}" if share < 1 else "a larger GPU"
            )
            return [
                *texts,
                f"{limit} leaves {_size(max(room, 0))} for it: about {longest} tokens fit; {need}",
            ]
        return [
            *texts,
            f"{limit} leaves {_size(room)} for it: about {room / max(sequence, 1):.1f} full sequences",
        ]


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / (1 << 30):.1f} GiB"


def estimate(size: object, gpu: object, *, unified: bool) -> Estimate | None:
    """The estimate for a GPU of ``gpu`` bytes, from ``size`` of a release's answer; None if that is
    incomplete.

    ``unified``: the GPU's memory is the machine's.
    """
    if not isinstance(size, Mapping) or not isinstance(size.get("config"), Mapping):
        return None
    named = ("ranks", "stages", "context", "sequences", "batched")
    ranks, stages, context, sequences, batched = (_number(size, name) for name in named)
    memory = _number({"memory": gpu}, "memory")
    share = size.get("share")
    if None in (ranks, stages, context, sequences, batched, memory) or not isinstance(share, float):
        return None
    assert ranks and stages and context and sequences and batched and memory
    if not 0 < share <= 1:
        return None
    draft = str(size.get("draft") or "")
    own = _own_draft(_text(size["config"])) if draft.endswith("mtp") else 0
    weights = _number(size, "weights")
    extra = _number(size, "draft_weights")
    beside = _draft_beside(size, ranks)
    if own or beside is not None:
        draft = "own" if own else "counted"
    if beside is not None and extra is None and weights is not None:
        draft = "cache"
    cache = cache_of(
        size["config"],
        str(size.get("cache_dtype")),
        ranks=ranks,
        dtype=str(size.get("dtype")),
        draft=own,
        beside=beside or 0,
        states=_number(size, "states") if "states" in size else 1,
        state_dtype=str(size.get("state_dtype") or "float32"),
        checkpoints=size.get("checkpoints") is not False,
    )
    return Estimate(
        memory,
        share,
        context,
        sequences,
        batched,
        None
        if weights is None
        else (weights + (extra or 0) * (beside is not None)) // ranks // stages,
        cache if stages == 1 else None,  # stages have different layers
        _number(size, "fixed"),
        draft,
        UNIFIED if unified else DISCRETE,
        bool(size.get("published")),
    )
