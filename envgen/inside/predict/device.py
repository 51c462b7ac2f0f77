"""Plays a GPU: whoever asks PyTorch or NVML for the device hears of it, in this process and in
those that it starts.

What then computes on it fails, as it would without one. This file stands alone: other processes run
it as their ``sitecustomize``.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict

Doc = Dict[str, Any]
STARTED = """

play(json.loads(os.environ["ENVGEN_DEVICE"]))
sys.path.remove(os.path.dirname(__file__))
own = sys.modules.pop("sitecustomize")
with suppress(ImportError):
    import sitecustomize  # the environment's own
sys.modules.setdefault("sitecustomize", own)
"""
SHARED = {8: 99, 12: 99}  # KiB of shared memory that a block may have; 227 on 9.x, 10.x and 11.x
MULTIPROCESSORS = {(12, 1): 48, (12, 0): 188}  # sizes of buffers and of grids; else 132


class Placeholder:
    """Replaces a stream or event that a layer keeps; calling it is an error."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("this computes on a GPU")


class Properties:
    """What PyTorch says of a device."""

    warp_size = 32
    is_integrated = False
    uuid = "GPU-assumed-by-envgen"
    regs_per_multiprocessor = 65536
    max_threads_per_multi_processor = 1536
    shared_memory_per_block = 48 << 10

    def __init__(self, gpu: Doc) -> None:
        self.major, self.minor = gpu["capability"]
        self.name = gpu["name"]
        self.total_memory = int(gpu["memory"])
        self.multi_processor_count = MULTIPROCESSORS.get((self.major, self.minor), 132)
        self.shared_memory_per_block_optin = SHARED.get(self.major, 227) << 10
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block_optin + 1024
        self.L2_cache_size = 24 << 20


class MemoryInfo:
    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.used = 0


def in_torch(torch: Any, gpu: Doc) -> None:
    """Answers of ``torch.cuda`` and ``torch.accelerator``."""
    properties = Properties(gpu)
    capability = tuple(gpu["capability"])
    memory = int(gpu["memory"])
    count = lambda *_: int(gpu["count"])  # noqa: E731
    put(
        torch.cuda,
        {
            "is_available": lambda: True,
            "_is_compiled": lambda: True,
            "device_count": count,
            "_device_count_nvml": count,
            "current_device": lambda: 0,
            "set_device": lambda *_: None,
            "synchronize": lambda *_: None,
            "get_device_capability": lambda *_: capability,
            "get_device_properties": lambda *_: properties,
            "get_device_name": lambda *_: gpu["name"],
            "mem_get_info": lambda *_: (memory, memory),
            "get_arch_list": lambda: ["sm_%d%d" % capability],
            "is_current_stream_capturing": lambda: False,
            "device": nullcontext,
            "stream": nullcontext,
            "Stream": Placeholder,
            "Event": Placeholder,
            "current_stream": Placeholder,
            "default_stream": Placeholder,
        },
    )
    # A build without CUDA lacks what others import once it says that it has it.
    if not hasattr(getattr(torch, "_C", torch), "_cuda_getCurrentRawStream"):
        getattr(torch, "_C", torch)._cuda_getCurrentRawStream = Placeholder()
    put(
        getattr(torch, "accelerator", None),
        {
            "is_available": lambda: True,
            "device_count": count,
            "current_device_index": lambda: 0,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "set_device_index": lambda *_: None,
            "get_memory_info": lambda *_: (memory, memory),
            "synchronize": lambda *_: None,
            "get_device_capability": lambda *_: {},
        },
    )


def in_nvml(nvml: Any, gpu: Doc) -> None:
    """Answers of NVML's Python bindings."""
    put(
        nvml,
        {
            "nvmlInit": lambda *_: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: int(gpu["count"]),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda _: 0,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetName": lambda _: gpu["name"],
            "nvmlDeviceGetCudaComputeCapability": lambda _: tuple(gpu["capability"]),
            "nvmlDeviceGetMemoryInfo": lambda *_: MemoryInfo(int(gpu["memory"])),
            "nvmlDeviceGetUUID": lambda _: Properties.uuid,
            "nvmlDeviceGetP2PStatus": lambda *_: 0,
        },
    )


def in_triton(module: Any, gpu: Doc) -> None:
    """Answers of Triton's driver, which a kernel asks when it is defined."""
    major, minor = gpu["capability"]

    class Driver(Placeholder):
        def get_current_target(self) -> Any:
            return sys.modules["triton.backends.compiler"].GPUTarget("cuda", major * 10 + minor, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, *_: Any) -> int:
            return 0

        def get_device_capability(self, *_: Any) -> Any:
            return major, minor

        def get_benchmarker(self) -> Any:
            return Placeholder()

    module.driver.set_active(Driver())


def put(module: Any, answers: Doc) -> None:
    for name, answer in answers.items():
        if hasattr(module, name):
            setattr(module, name, answer)


PLAYED: dict[str, Callable[[Any, Doc], None]] = {
    "torch": in_torch,
    "triton.runtime.driver": in_triton,
    "pynvml": in_nvml,
    "vllm.third_party.pynvml": in_nvml,
}


class WhenImported:
    """Finds a module as the others do, and plays the device in it once it is imported."""

    def __init__(self, gpu: Doc) -> None:
        self.gpu = gpu

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in PLAYED:
            return None
        others = [
            one
            for one in sys.meta_path
            if not isinstance(one, WhenImported) and hasattr(one, "find_spec")
        ]
        specs = (one.find_spec(name, path, target) for one in others)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            PLAYED[name](module, self.gpu)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def play(gpu: Doc) -> None:
    """Play the device from now on: a name, a capability, bytes of memory, and a count, which may
    change.
    """
    sys.meta_path[:] = [
        WhenImported(gpu),
        *(one for one in sys.meta_path if type(one).__name__ != "WhenImported"),
    ]
    for name, answers in PLAYED.items():
        if name in sys.modules:
            answers(sys.modules[name], gpu)
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_%d%da" % tuple(gpu["capability"]))


def for_processes(gpu: Doc, source: str, folder: str) -> None:
    """Processes that are started from now on play the device, too: their ``sitecustomize`` is this
    file.
    """
    with open(f"{folder}/sitecustomize.py", "w", encoding="utf-8") as file:
        file.write(source + STARTED)
    os.environ["ENVGEN_DEVICE"] = json.dumps(gpu)
    before = os.environ.get("PYTHONPATH")
    if before:
        folder += os.pathsep + before
    os.environ["PYTHONPATH"] = folder
