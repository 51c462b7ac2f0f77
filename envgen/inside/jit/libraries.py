"""Libraries with GPU code: which FlashInfer is imported, which prebuilt ones win, and which archs each one holds."""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib.util
import os
import re
import stat
import struct
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from envgen.inside.common import read_bytes, read_text, value_of
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


# Which FlashInfer this container's Python imports. It is looked for and not imported: that would bring torch along

BESIDE = ("vllm", "flash_attn", "vllm_flash_attn", "flashinfer_jit_cache", "triton")  # packages with GPU code
UNKNOWN = "0.0.0+unknown"


@dataclass
class Package:
    """``root`` is the folder that Python imports; ``aot`` where libraries would win over compiled ones; ``providers``:
    folder, archs and modules of each package of such libraries (from 0.7 on); ``beside``: folders of other packages
    with GPU code."""

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


def folder_of(name: str) -> str:
    """Where a package lies that would be imported; "" for none."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # of somebody's import hook
        return ""
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""


def package_of() -> Package:
    """The FlashInfer of this Python; all empty where there is none.

    From 0.7 on its jit-cache is a small package that finds prebuilt libraries; those of another version than FlashInfer
    are ignored. Up to 0.6 such a package stops the import.
    """
    sys.path[:] = [path for path in sys.path if path]  # as a service starts: -c puts the working folder first
    beside = {name: folder for name in BESIDE if (folder := folder_of(name))}
    found = Package(os.path.realpath(folder_of("flashinfer")) if folder_of("flashinfer") else "", beside=beside)
    if found.root:
        found.version = value_of("__version__", read_text(found.root + "/_build_meta.py")) or UNKNOWN
        found.aot = found.root + "/data/aot"
    cache = beside.get("flashinfer_jit_cache", "")
    if cache and "get_aot_artifacts" not in read_text(found.root + "/jit/env.py", 1 << 20):
        found.aot = cache + "/jit_cache"
    elif cache:
        with contextlib.suppress(Exception):
            found.providers = providers_of(found.version)
    return found


def providers_of(version: str) -> list[tuple[str, list[str], set[str]]]:
    """What the jit-cache for this FlashInfer names."""
    shim: Any = importlib.import_module("flashinfer_jit_cache")
    loose = bool(os.environ.get("FLASHINFER_DISABLE_VERSION_CHECK")) or version == UNKNOWN
    if not (loose or shim.__version__ == version or shim.__version__.startswith(version + "+")):
        return []
    return [
        (str(one.jit_cache_dir), sorted(arch[2:] for arch in one.cuda_architectures), set(one.modules))
        for one in shim.get_jit_cache_providers()
        if loose or one.version == shim.__version__
    ]


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


@dataclass
class Library:
    """A library and the GPU code in it. ``owner``: cache, or the package that it belongs to."""

    path: str
    owner: str
    name: str
    version: str = ""
    arch: str = ""
    archs: list[str] = field(default_factory=list)
    problem: str = ""

    def look(self) -> Library:
        """Read it."""
        try:
            archs = archs_of(self.path)
            self.archs, self.problem = archs or [], "is not an ELF file" * (archs is None and self.owner == "cache")
        except Damaged as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = reason(error)
        return self


@dataclass
class Assembler:
    """A ptxas that Triton brings, and which archs of the profile its text does not know."""

    path: str
    missing: list[str]


def run_audit(request: dict[str, Any]) -> dict[str, Any]:
    """Operation ``audit``: the archs in the libraries of the cache and of installed packages, and what Triton's own
    assembler knows."""
    package, root = package_of(), root_of(request)
    libraries: list[Library] = []
    cache = open_cache(root)
    if cache is not None:
        with cache:
            for shelf, names in modules_of(cache):
                paths = {name: shelf.path + "/" + name + "/" + name + ".so" for name in names}
                libraries += [
                    Library(path, "cache", name, shelf.version, shelf.arch).look()
                    for name, path in paths.items()
                    if os.path.isfile(path)
                ]
    for owner, folder in package.beside.items():
        for base, folders, files in os.walk(folder):
            folders.sort()
            for path in [base + "/" + name for name in sorted(files) if ".so" in name]:
                found = Library(path, owner, os.path.relpath(path, folder)).look()
                libraries += [found] if found.archs or found.problem else []
    assemblers = []
    for path in sorted(glob.glob(glob.escape(package.beside.get("triton", "")) + "/backends/nvidia/bin/ptxas*")):
        data = read_bytes(path, 1 << 30)
        missing = [name for name in request.get("names") or () if name.encode() not in data]
        assemblers += [Assembler(path, missing)] if data else []
    return {"root": root, "libraries": list(map(asdict, libraries)), "version": package.version,
            "assemblers": list(map(asdict, assemblers))}  # fmt: skip
