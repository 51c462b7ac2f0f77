"""Which FlashInfer this container imports, asked of its own Python: the agent itself runs without site-packages."""

from __future__ import annotations

import json
import os

from envgen.inside.jit.arch import runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Set, Tuple

    Provider = Tuple[str, List[str], Set[str]]

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
answer = {"root": root, "version": version, "aot": aot, "providers": providers}
sys.stdout.buffer.write(b"\\0envgen\\0" + json.dumps(answer).encode())
"""


class Package:
    """``root`` is the folder that Python imports, resolved; ``aot`` where libraries would win over compiled ones.

    ``providers``: folder, archs and modules of each package of such libraries, from FlashInfer 0.7 on.
    """

    __slots__ = ("aot", "providers", "root", "version")

    def __init__(self, root: str, version: str, aot: str, providers: list[Provider] | None = None) -> None:
        self.root = root
        self.version = version
        self.aot = aot
        self.providers = providers or []

    def masking(self, name: str, archs: list[str]) -> str:
        """The prebuilt library that is loaded instead of this module on every GPU of ``archs``; empty: none is."""
        path = self.aot + "/" + name + "/" + name + ".so"
        if self.aot and os.path.exists(path):
            return path
        found = ""
        for arch in archs:
            fitting = [
                folder + "/" + name + "/" + name + ".so"
                for folder, codes, modules in self.providers
                if name in modules and any(runs(code, arch) for code in codes)
            ]
            found = next((path for path in fitting if os.path.exists(path)), "")
            if not found:
                return ""  # FlashInfer compiles for this one
        return found


def spawn(python: str, text: str) -> tuple[int, int]:
    """Start Python on a text; its pid, and where its output can be read. subprocess would cost more than all else."""
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
        return os.posix_spawnp(python, [python, "-c", text], dict(os.environ), file_actions=actions), read
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
        os.close(null)


class Asked:
    """The question is on its way; ``answer`` waits for it. Start it early: it takes a Python's start, 50 ms."""

    def __init__(self, python: str, ask: str = _ASK) -> None:
        self.pid = 0
        self.fd = -1
        self.known = Package("", "", "")
        if not python:
            return
        try:
            self.pid, self.fd = spawn(python, "import sys; sys.path[:] = [p for p in sys.path if p]\n" + ask)
        except OSError:
            pass  # then nothing is known

    def answer(self) -> Package:
        """Wait for it. Everything is empty where Python could not be asked or has no FlashInfer."""
        if not self.pid:
            return self.known
        parts = []
        while True:
            part = os.read(self.fd, 65536)
            if not part:
                break
            parts.append(part)
        os.close(self.fd)
        os.waitpid(self.pid, 0)
        self.pid = 0
        # What is printed while Python starts (a .pth file, a sitecustomize) comes before our own words.
        self.known = read(b"".join(parts).rpartition(b"\0envgen\0")[2]) or self.known
        return self.known


def read(data: bytes) -> Package | None:
    """What the question printed; None for anything else, for the Python that answers is the container's."""
    try:
        said = json.loads(data)
        providers = [
            (str(folder), [str(arch) for arch in archs], {str(name) for name in modules})
            for folder, archs, modules in said["providers"]
        ]
        return Package(str(said["root"]), str(said["version"]), str(said["aot"]), providers)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def interpreter(request: dict[str, object]) -> str:
    """The service's own Python, by the profile's name for it; empty: it is not asked."""
    return str(request.get("python") or "")
