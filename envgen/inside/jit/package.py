"""Which FlashInfer this container imports, asked of its own Python: the agent itself runs without site-packages."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from envgen.inside.jit.arch import runs

Provider = Tuple[str, List[str], Set[str]]
BESIDE = ("vllm", "flash_attn", "vllm_flash_attn", "flashinfer_jit_cache", "triton")  # packages with GPU code

# Looks without importing FlashInfer, which would bring torch along. Prints the package's folder, its version, where
# prebuilt libraries lie, and the providers of FlashInfer 0.7: its jit-cache is a small package (only that is imported)
# that finds them. Of another version than FlashInfer they are ignored there; up to 0.6 such a package stops the import.
_ASK = """
import importlib.util, json, os, sys
def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return ""
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
root = os.path.realpath(folder("flashinfer")) if folder("flashinfer") else ""
version = "0.0.0+unknown" if root else ""
try:
    with open(root + "/_build_meta.py", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.split(":")[0].strip() == "__version__":
                version = value.strip().strip("\\"'")
except (OSError, ValueError):
    pass
cache = folder("flashinfer_jit_cache")
aot, providers = root + "/data/aot" if root else "", []
try:
    with open(root + "/jit/env.py", encoding="utf-8") as file:
        by_providers = "get_aot_artifacts" in file.read()
except (OSError, ValueError):
    by_providers = False
if cache and not by_providers:
    aot = cache + "/jit_cache"
elif cache:
    loose = bool(os.environ.get("FLASHINFER_DISABLE_VERSION_CHECK")) or version == "0.0.0+unknown"
    try:
        import flashinfer_jit_cache
        shim = flashinfer_jit_cache.__version__
        if loose or shim == version or shim.startswith(version + "+"):
            for one in flashinfer_jit_cache.get_jit_cache_providers():
                if loose or one.version == shim:
                    archs = sorted(arch[2:] for arch in one.cuda_architectures)
                    providers.append([str(one.jit_cache_dir), archs, sorted(one.modules)])
    except Exception:
        pass
beside = {name: folder(name) for name in %r if folder(name)}
answer = {"root": root, "version": version, "aot": aot, "providers": providers, "beside": beside}
sys.stdout.buffer.write(b"\\0envgen\\0" + json.dumps(answer).encode())
"""


@dataclass
class Package:
    """``root`` is the folder that Python imports, resolved; ``aot`` where libraries would win over compiled ones.

    ``providers``: folder, archs and modules of each package of such libraries, from FlashInfer 0.7 on. ``beside``: the
    folders of other packages with GPU code.
    """

    root: str = ""
    version: str = ""
    aot: str = ""
    providers: List[Provider] = field(default_factory=list)
    beside: Dict[str, str] = field(default_factory=dict)

    def masking(self, name: str, archs: list[str]) -> str:
        """The prebuilt library that is loaded instead of this module on every GPU of ``archs``; empty: none is."""
        path = self.aot + "/" + name + "/" + name + ".so"
        if self.aot and os.path.exists(path):
            return path
        path = ""
        for arch in archs:
            fitting = (
                folder + "/" + name + "/" + name + ".so"
                for folder, codes, modules in self.providers
                if name in modules and any(runs(code, arch) for code in codes)
            )
            path = next(filter(os.path.exists, fitting), "")
            if not path:
                return ""  # FlashInfer compiles for this one
        return path


def run_python(python: str, text: str) -> bytes:
    """What a text prints behind ``\\0envgen\\0`` in the container's own Python; empty where it can't be asked.

    What is printed while Python starts (a .pth file, a sitecustomize) comes before.
    """
    words = [python, "-c", "import sys; sys.path[:] = [p for p in sys.path if p]\n" + text]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except (OSError, ValueError):
        return b""
    return done.stdout.rpartition(b"\0envgen\0")[2]


def package_of(request: dict[str, object]) -> Package:
    """The FlashInfer of the service's own Python, by the profile's name for that; all empty where nothing is known."""
    python = str(request.get("python") or "")
    return (read(run_python(python, _ASK % (BESIDE,))) if python else None) or Package()


def read(data: bytes) -> Package | None:
    """What the question printed; None for anything else, for the Python that answers is the container's."""
    try:
        said = json.loads(data)
        providers = [
            (str(folder), [str(arch) for arch in archs], {str(name) for name in modules})
            for folder, archs, modules in said["providers"]
        ]
        beside = {name: str(said["beside"][name]) for name in BESIDE if name in said["beside"]}
        return Package(str(said["root"]), str(said["version"]), str(said["aot"]), providers, beside)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
