"""Replaces what a machine without a driver or GPU lacks: a stub of libcuda, empty modules, the
device itself.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib
import os
import re
import sys
from contextlib import contextmanager, suppress
from typing import Any, Iterator

from envgen.inside.common import Doc, read_text
from envgen.inside.predict import device
from envgen.inside.predict.release import NotAskable

EMPTY = "<envgen: empty>"
# What stands in for vLLM's compiled code answers each question alike, and notes the questions.
SUPPORTED: Doc = {"answer": False, "asked": []}
STUBS = (
    "/usr/local/cuda*/lib64/stubs/libcuda.so",
    "/usr/local/cuda*/targets/*/lib/stubs/libcuda.so",
    "/usr/local/cuda*/compat/libcuda.so.1",
)


def driver(report: Doc) -> None:
    """Without a driver, load CUDA's stub of libcuda: compiled modules are linked to its name."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return
    for stub in (path for pattern in STUBS for path in sorted(glob.glob(pattern))):
        with suppress(OSError):
            ctypes.CDLL(stub, mode=ctypes.RTLD_GLOBAL)
            report["stubs"].append({"name": "libcuda.so.1", "how": stub})
            return


def unloadable(report: Doc) -> None:
    """Replace compiled modules that can't be loaded (no CUDA libraries here) by empty ones."""
    package = os.path.dirname(report["vllm"]["file"])
    for path in sorted(glob.glob(f"{package}/**/*.so", recursive=True)):
        inner, _, _ = os.path.relpath(path, package).partition(".")
        name = ".".join(["vllm", *inner.split(os.sep)])
        if name in sys.modules:
            continue
        try:
            ctypes.CDLL(path)
        except OSError as problem:
            install_stub_module(name, f"empty: {problem}", report)
    if not has_compiled_code():
        answer_no(report)


def install_stub_module(name: str, how: str, report: Doc) -> None:
    """An empty module under the name of a compiled one."""
    stub = sys.modules[name] = type(sys)(name)
    stub.__dict__["__file__"] = EMPTY
    parent, _, last = name.rpartition(".")
    above = sys.modules.get(parent)
    if above is not None:
        setattr(above, last, stub)
    report["stubs"].append({"name": name, "how": how[:300]})


def imported(name: str, report: Doc) -> Any:
    """Import a module of vLLM; empty modules replace compiled ones that are missing or can't be
    loaded.
    """
    for _ in range(8):
        try:
            return importlib.import_module(name)
        except Exception as problem:
            missing = getattr(problem, "name", "") or ""
            if not re.match(r"vllm\._\w+$", missing) or missing in sys.modules:
                raise NotAskable(f"import {name}: {type(problem).__name__}: {problem}") from None
            install_stub_module(missing, f"empty: {problem}", report)
            answer_no(report)
    raise NotAskable(f"import {name}: too many compiled modules are missing")


def answer_no(report: Doc) -> None:
    """vLLM asks its compiled code what it supports: answer for it where it is missing, at first no."""
    torch = importlib.import_module("torch")
    package = os.path.dirname(report["vllm"]["file"])
    texts = read_text(
        f"{package}/_custom_ops.py", 4 << 20
    )  # empty where a release has no such file
    for space, name in sorted(set(re.findall(r"torch\.ops\.(_C\w*)\.(\w*support\w*)\(", texts))):
        holder = getattr(torch.ops, space)
        if not hasattr(holder, name):
            setattr(holder, name, functools.partial(supported, name))
            report["stubs"].append(
                {"name": f"torch.ops.{space}.{name}", "how": "answers no: not compiled here"}
            )


def supported(name: str, *_: Any) -> bool:
    SUPPORTED["asked"].append(name)
    return bool(SUPPORTED["answer"])


def set_platform(request: Doc, report: Doc, folder: str) -> Doc:
    """Play the requested GPU, unless a real one is there and requested; that one is asked for its
    figures first, and no context is opened on it. ``count`` of the answer may be changed.
    """
    gpu = dict(request["gpu"], count=1, real=False)
    if request.get("real") and importlib.import_module("torch").cuda.is_available():
        real = imported("vllm.platforms", report).current_platform
        capability = real.get_device_capability()
        gpu = {
            "name": real.get_device_name(),
            "capability": [capability.major, capability.minor],
            "real": True,
            "memory": real.get_device_total_memory(),
            "count": real.device_count(),
        }
    device.play(gpu)
    device.for_processes(gpu, program_text(device.__name__), folder)
    # A release may have looked for a device while it was imported, or not find its own version in a
    # checkout.
    platforms = imported("vllm.platforms", report)
    cuda = imported("vllm.platforms.cuda", report)
    if not platforms.current_platform.is_cuda():
        platforms._current_platform = cuda.CudaPlatform()
    for module in [
        one
        for name, one in list(sys.modules.items())
        if name.startswith("vllm") and one is not platforms
    ]:
        if "current_platform" in vars(module):
            vars(module)["current_platform"] = platforms.current_platform
    report["platform"] = gpu
    return gpu


def program_text(name: str) -> str:
    """The source of one of envgen's own modules, in a program or in a checkout."""
    loader: Any = sys.modules[name].__spec__.loader  # type: ignore[union-attr]
    return str(loader.files[name] if hasattr(loader, "files") else loader.get_source(name))


def has_compiled_code() -> bool:
    """Whether vLLM's compiled code and PyTorch with CUDA are installed here."""
    modules = [one for one in list(sys.modules.values()) if isinstance(one, type(sys))]
    whole = not any(vars(one).get("__file__") == EMPTY for one in modules)
    return whole and bool(importlib.import_module("torch").version.cuda)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Layers, and modules at their import, find placeholders for vLLM's compiled operations, if
    those are not here.
    """
    operations = importlib.import_module("torch").ops
    before = {
        name: getattr(operations, name) for name in ("_C", "_moe_C") if not has_compiled_code()
    }

    if before:
        with suppress(Exception):
            # Under placeholders it would take each for an operation, and describe what is not here.
            importlib.import_module("vllm._custom_ops")

    class Operations:
        def __init__(self, here: Any) -> None:
            self.here = here

        def __getattr__(self, name: str) -> Any:
            return getattr(self.here, name, device.Placeholder())

    for name, here in before.items():
        setattr(operations, name, Operations(here))
    try:
        yield
    finally:
        for name, here in before.items():
            setattr(operations, name, here)


@contextmanager
def on_meta() -> Iterator[None]:
    """Layers are built on the meta device, whatever device they name."""
    torch: Any = importlib.import_module("torch")
    mode: Any = importlib.import_module("torch.overrides").TorchFunctionMode

    class OnMeta(mode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None and str(kwargs["device"]) != "cpu":
                kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
            return function(*args, **kwargs)

    with torch.device("meta"), OnMeta():
        yield
