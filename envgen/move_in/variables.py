"""Where a variable of a container belongs in a profile: a key, `secrets`, a group of `env`, or one service."""

from __future__ import annotations

import posixpath
import re

from envgen.move_in.draft import Draft, refused
from envgen.profile.check_env import CACHE_DERIVED, DERIVED
from envgen.profile.patterns import ENV_NAME, matches
from envgen.profile.values import CudaArchList

_GROUPS = (
    (r"VLLM_.*|RAY_.*", "vllm"),
    (r"FLASHINFER_.*", "flashinfer"),
    (r"(NCCL|GLOO|UCX|OMPI|TP|MN|MASTER)_.*", "network"),
    (r"(TORCH|PYTORCH|TRITON|CUDA)_?.*", "torch"),
    (r"(HF|HUGGING_?FACE|TRANSFORMERS|SAFETENSORS)_.*", "hugging_face"),
)
_ARCH = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST")


def place(draft: Draft, name: str, value: str, file: str, line: int, service: str = "") -> None:
    """Put a variable where the profile has it. ``service``: of this one alone."""
    if not matches(ENV_NAME, name):
        draft.note(file, line, name, "is not the name of a variable")
    elif name in DERIVED:
        if not _derived(draft, name, value):
            draft.note(file, line, name, f"envgen sets it itself; the key `{DERIVED[name]}` decides it")
    elif name.startswith("ENVGEN_"):
        draft.note(file, line, name, "names that begin with ENVGEN_ are envgen's own")
    elif why := refused(name, value):
        if "secret" in why:
            secret(draft, name)
            why += "; `secrets` takes it from your shell, or from .env beside envgen.yaml"
        draft.note(file, line, name, why)
    elif name not in (draft.get("secrets") or ()):
        group = next((group for pattern, group in _GROUPS if re.fullmatch(pattern, name)), "settings")
        draft.put(*(("services", service, "env") if service else ("env", group)), name, value=value)


def secret(draft: Draft, name: str) -> None:
    """A variable whose value comes from the shell when a service starts."""
    draft.add("secrets", value=name)


def _derived(draft: Draft, name: str, value: str) -> bool:
    """Whether the key that decides this variable could be written from its value."""
    if name in _ARCH:
        text = " ".join(part for part in re.split(r"[\s;,]+", value.replace("+PTX", "")) if part)
        try:
            CudaArchList.parse(text)
        except ValueError:
            return False
        if name == _ARCH[0] or draft.get("cuda", "arch_list") is None:  # FlashInfer's is the stricter one
            draft.put("cuda", "arch_list", value=text)
        return bool(text == draft.get("cuda", "arch_list"))
    if name == "PYTHONPATH":
        parts = [posixpath.normpath(part) for part in value.split(":") if part.startswith("/")]
        for part in parts:
            draft.add("python_path", value=part)
        return bool(parts)
    if name == "CUDA_HOME" and value.startswith("/"):
        draft.put("cuda", "home", value=value)
    elif name == "MAX_JOBS" and re.fullmatch(r"[1-9][0-9]{0,3}", value):
        draft.put("build", "max_jobs", value=value)
    elif name in ("FLASHINFER_NVCC_THREADS", "NVCC_THREADS") and re.fullmatch(r"[1-9]|[1-5][0-9]|6[0-4]", value):
        draft.put("build", "nvcc_threads", value=value)
    else:
        return (name, value) == ("NVIDIA_VISIBLE_DEVICES", "all") or (
            name.startswith("TRITON_PTXAS") and value.endswith("/bin/ptxas")
        )
    return True


def settle(draft: Draft, file: str) -> None:
    """Take out what a cache of the profile sets itself."""
    caches = draft.get("caches") or {}
    services = draft.get("services") or {}
    for holder in (*(draft.get("env") or {}).values(), *(one.get("env", {}) for one in services.values())):
        for name in [name for name in holder if CACHE_DERIVED.get(name) in caches]:
            value, cache = holder.pop(name), CACHE_DERIVED[name]
            if not f"{value}/".startswith(f"{caches[cache]['path']}/"):
                draft.note(file, 1, name, f"envgen sets it itself, to the path of the cache {cache}")
    for one in services.values():
        if one.get("env") == {}:
            del one["env"]
    groups = {name: group for name, group in (draft.get("env") or {}).items() if group}
    if "env" in draft.values:
        draft.put("env", value=groups)
