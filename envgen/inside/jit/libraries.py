"""Libraries with GPU code: which FlashInfer is imported, which prebuilt ones win, and which archs each one holds."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import stat
import struct
import subprocess
from dataclasses import dataclass, field
from typing import Any

from envgen.inside.jit.layout import modules_of, open_cache, root_of
from envgen.inside.jit.tree import opened, reason


def parse_arch(text: str) -> tuple[int, int, str] | None:
    """``121a``, 12.1 with its own instructions, as (12, 1, "a"); None for anything else."""
    found = re.match(r"([0-9]{1,2})([0-9])([af]?)\Z", text)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def runs(code: str, device: str) -> bool:
    """Can a GPU of ``device`` run machine code for ``code``? CUDA's rule: ``a`` on that GPU alone, else on all later
    ones of its major version."""
    made, gpu = parse_arch(code), parse_arch(device)
    if made is None or gpu is None or made[0] != gpu[0]:
        return False
    return made[1] == gpu[1] if made[2] == "a" else made[1] <= gpu[1]


# Which FlashInfer this container imports, asked of its own Python: the agent itself runs without site-packages

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
def text_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
root = os.path.realpath(folder("flashinfer")) if folder("flashinfer") else ""
version = "0.0.0+unknown" if root else ""
for line in text_of(root + "/_build_meta.py").splitlines() if root else ():
    name, _, value = line.partition("=")
    if name.split(":")[0].strip() == "__version__":
        version = value.strip().strip("\\"'")
cache = folder("flashinfer_jit_cache")
aot, providers = root + "/data/aot" if root else "", []
if cache and "get_aot_artifacts" not in text_of(root + "/jit/env.py"):
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
    providers: list[tuple[str, list[str], set[str]]] = field(default_factory=list)
    beside: dict[str, str] = field(default_factory=dict)

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


def package_of(request: dict[str, Any]) -> Package:
    """The FlashInfer of the service's own Python, by the profile's name for that; all empty where nothing is known."""
    python = str(request.get("python") or "")
    return (read_package(run_python(python, _ASK % (BESIDE,))) if python else None) or Package()


def read_package(data: bytes) -> Package | None:
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


# Which GPU code an ELF library holds: the fat binaries in its ``.nv_fatbin`` sections, by their headers alone
#
# Measured on what nvcc 13.0 writes: a container starts with MAGIC, its header's length and the length of what follows;
# in it lie entries with kind (1 PTX, 2 machine code), their own two lengths, the arch as a number such as 121, and
# flags. Only headers are read: the size of a library does not matter.

MAGIC = 0xBA55ED50
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
MOST = 100_000  # entries of one library; more is not a library but an accident
KINDS = {1: "compute_", 2: "sm_"}
SUFFIXES = {0: "", 0x100000: "a", 0x200000: "f"}
BEYOND = "names an offset that no file has"


class Damaged(Exception):
    """It claims to be a library and is not one that can be read."""


def archs_of(path: str) -> list[str] | None:
    """``["compute_90", "sm_121a"]``; empty: no GPU code; None: no ELF file. Raises Damaged, or OSError."""
    try:
        with opened(path, flags=os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) as fd:
            status = os.fstat(fd)
            head = os.pread(fd, 64, 0) if stat.S_ISREG(status.st_mode) else b""
            if head[:4] != b"\x7fELF":
                return None
            if len(head) < 64 or head[4:6] != b"\x02\x01":
                raise Damaged("is not a 64-bit little-endian ELF file")
            found: set[str] = set()
            for offset, size in _sections(fd, head, status.st_size):
                _read_section(fd, offset, min(offset + size, status.st_size), found)
            return sorted(found)
    except struct.error:
        raise Damaged("ends in the middle of a header") from None
    except OverflowError:
        raise Damaged(BEYOND) from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # the same, just below the limit
            raise Damaged(BEYOND) from None
        raise


def _sections(fd: int, head: bytes, size: int) -> list[tuple[int, int]]:
    """Offset and length of each section with GPU code."""
    start = struct.unpack_from("<Q", head, 40)[0]
    width, count, names = struct.unpack_from("<HHH", head, 58)
    if not start or not count:
        return []
    if width != 64 or names >= count or start + width * count > size:
        raise Damaged("has a table of sections that is outside of it")
    entries = list(struct.iter_unpack("<IIQQQQ24x", os.pread(fd, width * count, start)))
    text = os.pread(fd, min(entries[names][5], 1 << 20), entries[names][4])
    return [(entry[4], entry[5]) for entry in entries if text[entry[0] : text.find(b"\0", entry[0])] in SECTIONS]


def _read_section(fd: int, position: int, end: int, found: set[str]) -> None:
    """Containers lie one after the other, each at a multiple of eight."""
    entries = 0
    while position + 16 <= end:
        magic, _, head, size = struct.unpack("<IHHQ", os.pread(fd, 16, position))
        if magic != MAGIC:
            position += 8  # padding
            entries += 1
            if entries > MOST:
                raise Damaged("holds no fat binary where its header says so")
            continue
        at = position + head
        stop = at + size
        if head < 16 or stop > end:
            raise Damaged("holds a fat binary that is cut off")
        while at + 48 <= stop:
            kind, inner, length, number, flags = struct.unpack("<H2xIQ12xI8xQ", os.pread(fd, 48, at))
            entries += 1
            if inner < 48 or at + inner + length > stop or entries > MOST:
                raise Damaged("holds an entry that is cut off")
            if kind in KINDS:
                found.add(KINDS[kind] + str(number) + SUFFIXES.get(flags & 0x300000, "a"))
            at += inner + length
        position = stop + (-stop % 8)


def run_audit(request: dict[str, Any]) -> dict[str, Any]:
    """Operation ``audit``: the archs in the libraries of the cache and of installed packages, and what Triton's own
    assembler knows."""
    package = package_of(request)
    libraries: list[dict[str, object]] = []
    root = root_of(request)
    cache = open_cache(root)
    if cache is not None:
        with cache:
            for shelf, names in modules_of(cache):
                for name in names:
                    path = shelf.path + "/" + name + "/" + name + ".so"
                    if os.path.isfile(path):
                        libraries.append(_library(path, "cache", name, shelf.version, shelf.arch))
    for owner, folder in package.beside.items():
        for base, folders, files in os.walk(folder):
            folders.sort()
            for path in [base + "/" + name for name in sorted(files) if ".so" in name]:
                found = _library(path, owner, os.path.relpath(path, folder), "", "")
                libraries += [found] if found["archs"] or found["problem"] else []
    return {"root": root, "libraries": libraries, "version": package.version,
            "assemblers": _assemblers(package.beside, list(request.get("names") or ()))}  # fmt: skip


def _library(path: str, owner: str, name: str, version: str, arch: str) -> dict[str, object]:
    archs: list[str] | None = []
    problem = ""
    try:
        archs = archs_of(path)
        if archs is None and owner == "cache":
            problem = "is not an ELF file"
    except Damaged as error:
        problem = str(error)
    except OSError as error:
        problem = reason(error)
    return {"path": path, "owner": owner, "name": name, "version": version, "arch": arch,
            "archs": archs or [], "problem": problem}  # fmt: skip


def _assemblers(folders: dict[str, str], names: list[str]) -> list[dict[str, object]]:
    """Triton's ptxas: does its text know the name of each wanted arch."""
    found: list[dict[str, object]] = []
    for path in sorted(glob.glob(glob.escape(folders.get("triton", "")) + "/backends/nvidia/bin/ptxas*")):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        found.append({"path": path, "missing": [name for name in names if name.encode() not in data]})
    return found
