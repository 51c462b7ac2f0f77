"""The caches that envgen knows by name: one row each, read by the checks, rendering, the JIT cache
and the docs.

A new cache is a row here, and a line in the `caches` of envgen.yaml and templates/init/envgen.yaml
where it ships.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownCache:
    """A name in `caches` that sets variables.

    ``path``: usually, in a container. ``variables``: name -> the folder below the cache's path.
    ``parents``: name -> the end that the path must have; the variable's value is the part before
    it. ``compiles``: the programs that compile into it at run time; "": it holds no compiled code.
    ``default``: where they look without the variables.
    """

    name: str
    path: str
    variables: Mapping[str, str] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    compiles: str = ""
    default: str = ""

    def environment(self, path: str) -> dict[str, str]:
        """The variables of a cache at ``path``."""
        above = {
            name: path.removesuffix(end) or "/"
            for name, end in self.parents.items()
            if path.endswith(end)
        }
        return {**{name: path + below for name, below in self.variables.items()}, **above}

    def line(self, host: str = "") -> str:
        """The line that adds it to a profile. ``host``: the folder on the machine; "": a volume."""
        folder = f", host: {host}" if host else ""
        return f"caches: {{{self.name}: {{path: {self.path}{folder}}}}}"


FLASHINFER = KnownCache(
    "flashinfer",
    "/root/.cache/flashinfer",
    {"FLASHINFER_JIT_BUILD_LOG": "/jit-builds.jsonl"},
    parents={"FLASHINFER_WORKSPACE_BASE": "/.cache/flashinfer"},
    compiles="FlashInfer",
    default="`~/.cache/flashinfer`",
)
HUGGINGFACE = KnownCache("huggingface", "/root/.cache/huggingface", {"HF_HOME": ""})
_ROWS = (
    FLASHINFER,
    KnownCache(
        "vllm",
        "/root/.cache/vllm",
        {"VLLM_CACHE_ROOT": ""},
        compiles="vLLM: its compiled graphs (`torch_compile_cache`), DeepGEMM",
        default="`~/.cache/vllm`",
    ),
    KnownCache(
        "triton",
        "/root/.triton/cache",
        {"TRITON_CACHE_DIR": ""},
        compiles="Triton",
        default="`~/.triton/cache`",
    ),
    KnownCache(
        "torch",
        "/root/.cache/torch",
        {
            "TORCH_HOME": "",
            "TORCHINDUCTOR_CACHE_DIR": "/inductor",
            "TORCH_EXTENSIONS_DIR": "/extensions",
        },
        compiles="Inductor, torch extensions",
        default="`$TMPDIR/torchinductor_<user>`, `~/.cache/torch_extensions`",
    ),
    KnownCache(
        "cute_dsl",
        "/root/.cache/cute_dsl",
        {"CUTE_DSL_CACHE_DIR": ""},
        compiles="CuTe DSL (nvidia-cutlass-dsl 4.8.0)",
        default="`$TMPDIR/<user>/cutlass_python_cache`",
    ),
    KnownCache(
        "tilelang",
        "/root/.tilelang/cache",
        {"TILELANG_CACHE_DIR": ""},
        compiles="TileLang 0.1.12",
        default="`~/.tilelang/cache`",
    ),
    KnownCache(
        "tvm_ffi",
        "/root/.cache/tvm-ffi",
        {"TVM_FFI_CACHE_DIR": ""},
        compiles="TVM FFI",
        default="`~/.cache/tvm-ffi`",
    ),
    KnownCache(
        "b12x",
        "/root/.cache/b12x",
        {"B12X_COMPILE_CACHE_DIR": "/compile", "B12X_ROCE_CACHE_DIR": "/roce"},
        compiles="b12x 1.5.1: kernels, its RoCE proxy; its loader only with the default place",
        default="`~/.cache/b12x`",
    ),
    KnownCache(
        "humming",
        "/root/.humming/cache",
        {"HUMMING_CACHE_DIR": ""},
        compiles="humming-kernels 0.1.17: linear and MoE kernels",
        default="`~/.humming/cache`",
    ),
    KnownCache(
        "quack",
        "/root/.quack/cache",
        {"QUACK_CACHE_DIR": ""},
        compiles="quack-kernels 0.6.5",
        default="`$TMPDIR/<user>/quack_cache`, `~/.quack/cache`",
    ),
    HUGGINGFACE,
    KnownCache("ccache", "/root/.cache/ccache", {"CCACHE_DIR": ""}),
    KnownCache("uv", "/root/.cache/uv", {"UV_CACHE_DIR": ""}),
)
KNOWN: Mapping[str, KnownCache] = {row.name: row for row in _ROWS}
# The variable -> the name of the cache that sets it.
SETS: Mapping[str, str] = {
    name: row.name for row in _ROWS for name in (*row.variables, *row.parents)
}


def environment_of(name: str, path: str) -> dict[str, str]:
    """The variables of the cache ``name`` at ``path``; {} for a name that envgen does not know."""
    return KNOWN[name].environment(path) if name in KNOWN else {}
