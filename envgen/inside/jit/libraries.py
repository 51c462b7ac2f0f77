"""The FlashInfer that Python imports, and prebuilt libraries that it loads instead of compiled
ones.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from envgen.inside.common import read_text, value_of


def parse_arch(text: str) -> tuple[int, int, str] | None:
    """``121a``, 12.1 with its own instructions, as (12, 1, "a"); None for anything else."""
    parts = re.match(r"([0-9]{1,2})([0-9])([af]?)\Z", text)
    if not parts:
        return None
    return int(parts[1]), int(parts[2]), parts[3]


def runs(code: str, device: str) -> bool:
    """Whether a GPU of ``device`` runs machine code for ``code``. CUDA's rule: ``a`` only on that
    GPU, else on all later ones of its major version.
    """
    made = parse_arch(code)
    gpu = parse_arch(device)
    if made is None or gpu is None:
        return False
    major, minor, suffix = made
    if major != gpu[0]:
        return False
    if suffix == "a":
        return minor == gpu[1]
    return minor <= gpu[1]


# CuTe DSL's backends and the first driver of each: it picks the newest that the driver supports
# (nvidia-cutlass-dsl 4.8.0). FlashInfer up to 0.7.4 has the installed ones in its key, not the
# picked one.
FIRST_DRIVERS = {"cu12": 525, "cu13": 580}
_BACKEND = re.compile(r"nvidia-cutlass-dsl-libs-(cu\d\d)\Z")


def backends() -> list[str]:
    """The installed backends of CuTe DSL."""
    names = {str(one.metadata["Name"]) for one in importlib.metadata.distributions()}
    found = (_BACKEND.match(name.lower().replace("_", "-")) for name in names)
    return sorted(match[1] for match in found if match)


def backend_for(driver: str, installed: list[str]) -> str:
    """The backend that CuTe DSL picks; where it is not known, the driver stands for it."""
    major = re.match(r"\d{3,4}", driver)
    if major is None or not FIRST_DRIVERS.keys() >= set(installed):
        return f"what it picks for driver {driver}"
    release = int(major[0])
    fitting = [name for name in installed if FIRST_DRIVERS[name] <= release]
    return max(fitting, default="")


# The package is found, and not imported, which would import torch.

UNKNOWN = "0.0.0+unknown"


@dataclass
class InstalledPackage:
    """``root``: the folder that Python imports; ``aot``: the folder of prebuilt libraries;
    ``providers``: folder, archs and modules of each package of prebuilt libraries (from 0.7 on);
    ``prebuilt``: what is installed of these, in words.
    """

    root: str = ""
    version: str = ""
    aot: str = ""
    providers: list[tuple[str, list[str], set[str]]] = field(default_factory=list)
    prebuilt: list[str] = field(default_factory=list)

    def masking(self, name: str, archs: list[str]) -> str:
        """The prebuilt library that is loaded instead of this module on every GPU of ``archs``; ""
        without one.
        """
        path = f"{self.aot}/{name}/{name}.so"
        if self.aot and os.path.exists(path):
            return path
        path = ""
        for arch in archs:
            fitting = (
                f"{folder}/{name}/{name}.so"
                for folder, codes, modules in self.providers
                if name in modules and any(runs(code, arch) for code in codes)
            )
            path = next(filter(os.path.exists, fitting), "")
            if not path:
                return ""  # FlashInfer compiles for this one
        return path


def folder_of(name: str) -> str:
    """The folder of a package that Python would import; "" without one."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # raised by an import hook
        return ""
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""


def package_of() -> InstalledPackage:
    """The FlashInfer of this Python; all fields empty without one.

    From 0.7 on its jit-cache is a small package that finds prebuilt libraries; FlashInfer ignores
    those of another version. Up to 0.6 such a package makes the import fail.
    """
    sys.path[:] = [
        path for path in sys.path if path
    ]  # as a service starts: -c puts the working folder first
    folder = folder_of("flashinfer")
    package = InstalledPackage(os.path.realpath(folder) if folder else "")
    if package.root:
        package.version = (
            value_of("__version__", read_text(f"{package.root}/_build_meta.py")) or UNKNOWN
        )
        package.aot = f"{package.root}/data/aot"
    cache = folder_of("flashinfer_jit_cache")
    if cache and "get_aot_artifacts" not in read_text(f"{package.root}/jit/env.py", 1 << 20):
        package.aot = f"{cache}/jit_cache"
    elif cache:
        with suppress(Exception):
            find_providers(package)
    return package


def find_providers(package: InstalledPackage) -> None:
    """The providers of the jit-cache for this FlashInfer, and who ignores the others."""
    shim = importlib.import_module("flashinfer_jit_cache")
    version = package.version
    whole = shim.__version__
    loose = bool(os.environ.get("FLASHINFER_DISABLE_VERSION_CHECK")) or version == UNKNOWN
    if not (loose or whole == version or whole.startswith(f"{version}+")):
        package.prebuilt.append(f"FlashInfer {version} ignores flashinfer-jit-cache {whole}")
        return
    for one in shim.get_jit_cache_providers():
        name = f"{one.distribution} {one.version}"
        if not loose and one.version != whole:
            package.prebuilt.append(f"FlashInfer ignores {name} beside its {whole}")
            continue
        codes = sorted(arch[2:] for arch in one.cuda_architectures)
        modules = set(one.modules)
        package.providers.append((str(one.jit_cache_dir), codes, modules))
        text = f"{name}: {len(modules)} modules for {', '.join(codes)}"
        package.prebuilt.append(text + _other_cuda(one.version))


def _other_cuda(version: str) -> str:
    """What is wrong with a package for CUDA 12 (``+cu129``) beside CUDA 13; "" where nothing is."""
    libraries = f"{os.environ.get('CUDA_HOME', '')}/lib64"
    label = re.search(r"\+cu(\d\d)", version)
    if label is None or not os.path.exists(libraries):
        return ""
    needed = f"libcudart.so.{label[1]}"
    if os.path.exists(f"{libraries}/{needed}"):
        return ""
    return f", which need {needed}: FlashInfer compiles those that it can't load"
