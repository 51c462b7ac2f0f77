"""Where a variable of a container belongs in a profile: a key, `secrets`, a group of `env`, or one service."""

from __future__ import annotations

import posixpath
import re

from envgen.move_in.draft import Draft, refused
from envgen.profile.tree import Node
from envgen.profile.values import CudaArchList

_GROUPS = (
    (r"VLLM_.*|RAY_.*", "vllm"),
    (r"FLASHINFER_.*", "flashinfer"),
    (r"(NCCL|GLOO|UCX|OMPI|TP|MN|MASTER)_.*", "network"),
    (r"(TORCH|PYTORCH|TRITON|CUDA)_?.*", "torch"),
    (r"(HF|HUGGING_?FACE|TRANSFORMERS|SAFETENSORS)_.*", "hugging_face"),
)
_NUMBERS = {"MAX_JOBS": "max_jobs", "FLASHINFER_NVCC_THREADS": "nvcc_threads", "NVCC_THREADS": "nvcc_threads"}
_ARCH = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST")


def place(draft: Draft, name: str, value: str, at: Node | tuple[str, int], service: str = "") -> None:
    """Put a variable where the profile has it. ``service``: of this one alone."""
    if _derived(draft, name, value):
        return
    if why := refused(name, value):
        secret(draft, name)
        draft.note(at, name, f"{why}; `secrets` takes it from your shell, or from .env beside envgen.yaml")
    elif name not in (draft.get("secrets") or ()):
        group = next((group for pattern, group in _GROUPS if re.fullmatch(pattern, name)), "settings")
        path = ("services", service, "env") if service else ("env", group)
        draft.put(*path, name, value=value, at=at)


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
    if name == "CUDA_HOME":
        draft.put("cuda", "home", value=value)
    elif name in _NUMBERS and value.isdecimal():
        draft.put("build", _NUMBERS[name], value=int(value))
    else:
        # What envgen sets to the same anyway.
        return (name, value) == ("NVIDIA_VISIBLE_DEVICES", "all") or (
            name.startswith("TRITON_PTXAS") and value.endswith("/bin/ptxas")
        )
    return True
