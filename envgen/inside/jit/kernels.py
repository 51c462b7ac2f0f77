"""Kernels that b12x compiled: ``<root>/<two digits>/<key>.o``, with a manifest (.json) and a lock
(.lock) beside each.

b12x loads an object only under its own key, which the bytes of b12x's files, the toolchain, the
device, the shapes and some variables make. So a stale one never runs: it only takes room, and its
successor has another key.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

from envgen.inside.common import read_text
from envgen.inside.jit import tree
from envgen.inside.jit.layout import fits
from envgen.inside.jit.libraries import folder_of
from envgen.inside.jit.shapes import Module, ModuleTarget

KIND = "b12x"
VARIABLE = "B12X_COMPILE_CACHE_DIR"
SCHEMA = "b12x._lib.compile_manifest."  # then a version: 1.5.1 writes v3
COPY = os.path.join("experimental", "b12x")  # in FlashInfer's package
LARGEST = 1 << 20  # bytes of a manifest; real ones have 9 KiB
OTHER_TOOLS = (
    "python",
    "torch_cuda",
    "b12x_runtime_patches",
)  # in a toolchain, but no distribution's version
UNCOMPARED = (
    "not compared: torch's CUDA, b12x's changes of CuTe DSL, and variables such as CUDA_HOME"
)
Doc = Dict[str, Any]


@dataclass
class Kernels:
    """The kernels of one operation in one state. ``module``: as ``list`` has it; ``places``: folder
    and key of each.
    """

    module: Module
    places: List[Tuple[str, str]] = field(default_factory=list)

    def take(self, folder: str, key: str, size: int, modified: float) -> None:
        self.places.append((folder, key))
        self.module.objects += 1
        self.module.files += 2
        self.module.bytes += size
        self.module.modified = max(self.module.modified, modified)


@contextlib.contextmanager
def opened(request: Doc, problems: List[str]) -> Iterator[int]:
    """The cache that the request names, or this process's variable; -1 where there is none."""
    with contextlib.ExitStack() as stack:
        fd = -1
        if request.get(KIND):
            with tree.noting(problems, KIND):
                root = os.path.realpath(os.environ.get(VARIABLE) or str(request[KIND]))
                fd = stack.enter_context(tree.opened(root))
        yield fd


def find(fd: int, request: Doc, problems: List[str]) -> List[Kernels]:
    """The kernels that the patterns (none: all), the version and the archs of a request choose,
    judged.
    """
    if fd < 0:
        return []
    groups: Dict[Any, Kernels] = {}
    here = installed()
    patterns, archs, version = (
        request.get("patterns") or ["*"],
        request.get("archs"),
        request.get("version"),
    )
    for folder, key, manifest in manifests(fd, problems):
        name, package, arch = (
            manifest["kernel_id"],
            manifest["package_fingerprint"],
            arch_of(manifest),
        )
        label = here[1] if package == here[0] else KIND + "-" + package[:8]
        if (
            fits(name, patterns)
            and version in (None, "", label)
            and (archs is None or arch in archs)
        ):
            module = Module(label, arch, name, KIND, built=True, state="fresh")
            size, modified, broken = weigh(key, folder, fd, manifest, bool(request.get("thorough")))
            judge(module, manifest, broken, here, request)
            same = (label, arch, name, module.state, *(reason.message for reason in module.reasons))
            groups.setdefault(same, Kernels(module)).take(folder, key, size, modified)
    return [groups[same] for same in sorted(groups)]


def manifests(fd: int, problems: List[str]) -> Iterator[Tuple[str, str, Doc]]:
    """Folder, key and manifest of each kernel; what can't be read, or is of another shape, is a
    problem.
    """
    for folder in sorted(name for name in os.listdir(fd) if re.match(r"[0-9a-f]{2}\Z", name)):
        with tree.noting(problems, KIND + "/" + folder), tree.opened(folder, fd) as inner:
            for file in sorted(
                name for name in os.listdir(inner) if re.match(r"[0-9a-f]{64}\.json\Z", name)
            ):
                shown = KIND + "/" + folder + "/" + file[:12] + "..."
                with tree.noting(problems, shown):
                    manifest = sound(tree.read_file(file, inner, LARGEST), file[:-5])
                    if manifest is None:
                        tree.note(problems, shown + ": is no manifest that is known here")
                    else:
                        yield folder, file[:-5], manifest


def sound(data: bytes, key: str) -> "Doc | None":
    """A manifest, where all that is read of it has the shape of b12x's own; else None."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("cache_key") != key:
        return None
    lists = [manifest.get(name) for name in ("toolchain", "compile_environment")]
    whole = all(isinstance(one, list) for one in lists)
    pairs = whole and all(
        isinstance(pair, list) and len(pair) > 1 for one in lists for pair in one or ()
    )
    texts = {
        "schema": re.escape(SCHEMA) + r".*",
        "kernel_id": r"[\w.-]{1,200}",
        "package_fingerprint": r"[0-9a-f]{64}",
    }
    known = all(
        isinstance(manifest.get(name), str) and re.match(pattern + r"\Z", manifest[name], re.ASCII)
        for name, pattern in texts.items()
    )
    return manifest if pairs and known else None


def arch_of(manifest: Doc) -> str:
    """The arch that it was compiled for, without the sm_: that of the variable, else that of the
    device in its key.
    """
    values = [
        str(pair[1]) for pair in manifest["compile_environment"] if pair[0] == "CUTE_DSL_ARCH"
    ]
    device = re.search(r'\["cuda", \[(\d+), (\d)\]', json.dumps(manifest.get("cache_payload")))
    return re.sub(r"\Asm_|[^\w]", "", "".join(values)) or (
        "".join(device.groups()) + "a" if device else ""
    )


def weigh(key: str, folder: str, fd: int, manifest: Doc, thorough: bool) -> Tuple[int, float, str]:
    """Bytes and time of an object, and why b12x would not load it: it asks for the size and the
    digest, too.
    """
    name = folder + "/" + key + ".o"
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if status.st_size != manifest.get("object_bytes"):
            return status.st_size, status.st_mtime, "has another size than its manifest says"
        if thorough and tree.digest_of_text(tree.read_file(name, fd)) != manifest.get(
            "object_sha256"
        ):
            return status.st_size, status.st_mtime, "has other bytes than its manifest says"
    except OSError as error:
        return 0, 0.0, "can't be read: " + tree.reason(error)
    return status.st_size, status.st_mtime, ""


def judge(module: Module, manifest: Doc, broken: str, here: Tuple[str, str], request: Doc) -> None:
    """Whether b12x, as it is installed here, would load a kernel again."""
    changed = []
    for pair in manifest["toolchain"]:
        name = str(pair[0]).replace("_", "-")
        then, now = (
            str(pair[-1]),
            version_of("nvidia-" + name if name.startswith("cutlass-dsl") else name),
        )
        if pair[0] not in OTHER_TOOLS and now and then not in (now, "missing"):
            changed.append(name + " was " + then + ", and is " + now)
    archs = [
        arch for folder in request.get("expected_archs") or () for arch in str(folder).split("_")
    ]
    if broken:
        module.prove("broken library", "its object " + broken)
    if here[0] and manifest["package_fingerprint"] != here[0]:
        module.prove("another b12x", "was compiled by other files of b12x than those of " + here[1])
        # A temporary container has the image's b12x, and not a checkout that services mount.
        module.guess = bool(request.get("blind") and request.get("mounted"))
    if here[0] and changed:
        module.prove("other tools", "was compiled with other tools: " + ", ".join(changed))
    if module.reasons:
        module.state = "stale"
    elif archs and module.arch not in archs:
        module.state = "foreign"
        module.add("foreign", "this environment compiles for " + " or ".join(archs), stale=False)
    elif not here[0]:
        module.state = "unknown"
        module.add("unseen", "b12x is not installed here", stale=False)
    elif request.get("thorough"):
        module.add("uncompared", UNCOMPARED, stale=False)


def installed() -> Tuple[str, str]:
    """The b12x that Python would import: the fingerprint of its files, and its name and version; ""
    without one.

    FlashInfer's wheel has a b12x/__init__.py, too, which loads the copy in its own package.
    """
    folder, name = folder_of(KIND), KIND
    if "flashinfer" in read_text(os.path.join(folder, "__init__.py")):
        folder, name = os.path.join(folder_of("flashinfer"), COPY), "flashinfer-python"
    if not folder or not os.path.isdir(os.path.join(folder, "_lib")):
        return "", ""
    return fingerprint(folder), name.partition("-")[0] + "-" + (version_of(name) or "unknown")


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def fingerprint(folder: str) -> str:
    """What b12x makes of its package: a digest of the names and bytes of all its files, ordered by
    folder and name.
    """
    digest = hashlib.sha256()
    files = [
        os.path.relpath(os.path.join(top, name), folder)
        for top, _, names in os.walk(folder)
        for name in names
    ]
    for path in sorted(files, key=lambda path: path.split(os.sep)):
        if "__pycache__" not in path.split(os.sep) and not path.endswith((".pyc", ".pyo")):
            with open(os.path.join(folder, path), "rb") as file:
                digest.update(path.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


# Clearing: under b12x's own lock of each kernel, which stays, as FlashInfer's do.


def locks_of(fd: int, groups: List[Kernels]) -> List[Tuple[int, str, str]]:
    """The lock of each kernel, as ``Hold`` takes it."""
    return [
        (fd, folder + "/" + key + ".lock", one.module.name)
        for one in groups
        for folder, key in one.places
    ]


def remove(fd: int, kernels: Kernels, errors: List[str]) -> bool:
    """Remove objects, each after its manifest: b12x takes one without the other for none. Whether
    all are gone.
    """
    before = len(errors)
    for folder, key in kernels.places:
        for end in (".json", ".o"):
            with tree.noting(errors, KIND + "/" + folder + "/" + key + end), tree.opened(
                folder, fd
            ) as inner:
                os.unlink(key + end, dir_fd=inner)
    return len(errors) == before


def target(kernels: Kernels, gone: bool) -> ModuleTarget:
    module = kernels.module
    return ModuleTarget(
        module.version, module.arch, module.name, module.bytes, module.files, False, (), gone
    )
