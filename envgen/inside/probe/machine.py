"""Runs INSIDE the container: the machine, CUDA, compilers, GPU, processes.

Compilers are asked what they can compile for; the GPU is asked through NVML, in a child, because a broken driver can
hang or crash who asks.
"""

from __future__ import annotations

import json
import os
import re
import time

from envgen.inside.probe.basics import Doc, call, entries, in_child, listing, read_text

TOOL_LIMIT = 2.0  # seconds, for one compiler to say what it knows
GPU_LIMIT = 4.0  # seconds, for all of NVML
COMPILERS = ("nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "ninja", "cc1plus", "c++", "g++", "gcc")


def system(_request: Doc, _document: Doc) -> Doc:
    """User, processors, memory and what there is of an NVIDIA GPU."""
    found: Doc = {"uid": os.getuid(), "gid": os.getgid(), "now": time.time()}
    for line in read_text("/proc/meminfo").splitlines():
        words = line.split()
        if words[0] in ("MemTotal:", "MemAvailable:", "MemFree:", "Cached:", "SwapTotal:", "SwapFree:"):
            found[words[0][:-1]] = int(words[1]) * 1024
    driver = "/proc/driver/nvidia/version"
    found["nvidia"] = {
        "devices": ["/dev/" + name for name in listing("/dev") if name.startswith("nvidia")],
        "driver": read_text(driver).partition("\n")[0] or None,
    }
    return found


# --- CUDA ------------------------------------------------------------------------------------------------------------


def torch_facts(document: Doc) -> Doc:
    """Version and CUDA release of torch, from the file that its build writes."""
    for entry in entries(document):
        path = os.path.join(entry, "torch", "version.py")
        found = {}
        for line in read_text(path).splitlines():
            left, equals, right = line.partition("=")
            name, value = left.partition(":")[0].strip(), right.strip().strip("'\"")
            if equals and name in ("__version__", "cuda") and value != "None":
                found[name.strip("_")] = value
        if found:
            return dict(found, path=path)
    return {}


def cudnn_facts(document: Doc) -> Doc:
    """The cuDNN that is loaded: its library's name tells the version (libcudnn.so.9.15.1)."""
    folders = [entry + "/nvidia/" + part for entry in entries(document) for part in ("cudnn/lib", "cu13/lib")]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += ["/usr/lib/%s-linux-gnu" % os.uname().machine, "/usr/lib64", "/usr/local/cuda/lib64"]
    for folder in folders:
        for name in listing(folder) if folder else []:
            if name.startswith("libcudnn.so."):
                real = os.path.basename(os.path.realpath(os.path.join(folder, name)))
                version = real[len("libcudnn.so.") :] if real.startswith("libcudnn.so.") else ""
                if version.count("."):
                    return {"version": version, "path": os.path.join(folder, name)}
    for entry in entries(document):  # the wheel's library is called libcudnn.so.9
        for name in listing(entry):
            if name.startswith("nvidia_cudnn_cu") and name.endswith(".dist-info"):
                return {"version": name[: -len(".dist-info")].partition("-")[2], "path": os.path.join(entry, name)}
    return {}


def toolkit_facts() -> Doc:
    """The CUDA toolkit of CUDA_HOME: its version file."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    path = os.path.join(home, "version.json")
    if os.path.isfile(path):
        try:
            return {"version": str(json.loads(read_text(path))["cuda"]["version"]), "path": path}
        except (ValueError, KeyError, TypeError):
            return {"path": path}
    real = os.path.realpath(home)  # some images leave the file out; the folder is called cuda-13.0
    version = os.path.basename(real).partition("cuda-")[2]
    return {"version": version, "path": real} if version[:1].isdigit() else {}


def triton_ptxas(document: Doc) -> list[tuple[str, str]]:
    """(name, path) of each ptxas that Triton may start: the variable's, else the ones in its package."""
    found = []
    for variable, file in (("TRITON_PTXAS_PATH", "ptxas"), ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell")):
        path = os.environ.get(variable, "")
        if path:
            found.append((variable, path))
            continue
        for entry in entries(document):
            path = os.path.join(entry, "triton", "backends", "nvidia", "bin", file)
            if os.path.isfile(path):
                found.append(("Triton's " + file, path))
                break
    return found


def archs_of(words: str) -> list[str]:
    """The sm_ names in what a compiler prints."""
    return sorted(set(re.findall(r"\bsm_[0-9]+[af]?\b", words)))


def tool(name: str, path: str, question: str) -> Doc:
    """A compiler, and the architectures that it says it compiles for."""
    if not os.access(path, os.X_OK):
        return {"name": name, "path": path, "error": "can't be started" if os.path.exists(path) else "is missing"}
    said, why = call([path, question], TOOL_LIMIT)
    return {"name": name, "path": path, "archs": archs_of(said), "error": why}


def cuda(_request: Doc, document: Doc) -> Doc:
    """torch, cuDNN, the toolkit, and the compilers that FlashInfer's and Triton's kernels go through."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    tools = [tool(name, path, "--help") for name, path in triton_ptxas(document)]
    nvcc, ptxas = os.path.join(home, "bin", "nvcc"), os.path.join(home, "bin", "ptxas")
    if os.path.exists(nvcc):
        tools.append(tool("nvcc", nvcc, "--list-gpu-code"))
    if os.path.exists(ptxas):
        tools.append(tool("ptxas", ptxas, "--help"))
    return {"torch": torch_facts(document), "cudnn": cudnn_facts(document), "toolkit": toolkit_facts(), "tools": tools}


# --- the GPU ---------------------------------------------------------------------------------------------------------


def ask_nvml() -> list[Doc]:
    """In a child: each GPU's name, compute capability, memory and driver."""
    import ctypes  # which some builds of Python lack

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        return []
    buffer, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    nvml.nvmlSystemGetDriverVersion(buffer, 96)
    driver = buffer.value.decode("utf-8", "replace")
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        memory = (ctypes.c_ulonglong * 3)()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        nvml.nvmlDeviceGetName(device, buffer, 96)
        nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        # A GPU with unified memory has none of its own to tell: the call fails, and memory stays 0.
        nvml.nvmlDeviceGetMemoryInfo(device, memory)
        found.append({"name": buffer.value.decode("utf-8", "replace"), "driver": driver,
                      "capability": "%d.%d" % (major.value, minor.value), "memory": memory[0]})  # fmt: skip
    return found


def gpus(_request: Doc, document: Doc) -> list[Doc]:
    """The GPUs that the driver shows to this container; none are asked for where there is no device."""
    if not document.get("system", {}).get("nvidia", {}).get("devices"):
        return []
    data, late, _ = in_child(lambda out: os.write(out, json.dumps(ask_nvml()).encode()), GPU_LIMIT)
    if late:
        document["errors"].append({"part": "gpus", "error": "NVML took longer than %d s" % GPU_LIMIT})
    found: list[Doc] = json.loads(data) if data and not late else []
    return found


# --- other processes -------------------------------------------------------------------------------------------------


def processes(_request: Doc, _document: Doc) -> Doc:
    """Compilers that have ended and have not been waited for, and those that still run without a parent."""
    zombies, orphans = [], []
    for folder in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not folder.isdigit():
            continue
        line = read_text("/proc/%s/stat" % folder, 600)
        name, _, rest = line.partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) < 2 or not name.startswith(COMPILERS):
            continue
        if fields[0] == "Z":
            zombies.append(name)
        elif fields[1] == "1" and folder != "1":
            orphans.append(name)
    first = read_text("/proc/1/stat", 600)
    return {"zombies": sorted(zombies), "orphans": sorted(orphans), "first": first.partition("(")[2].rpartition(")")[0]}
