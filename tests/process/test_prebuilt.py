"""Prebuilt kernels: the real FlashInfer 0.7.2.post1, and a real module of it that the real nvcc compiled here for 12.1a.

flashinfer-jit-cache is on no package index; the wheels here stand in for it and for its provider, with what FlashInfer
asks of them (flashinfer-ai/flashinfer#4514). A package installer takes them from an index of the test.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from local import serving
from releases import environment

from envgen.cli.check import cache_lines
from envgen.inside.jit.shapes import ImportedPackage, Inventory

pytestmark = pytest.mark.nightly

FLASHINFER = "0.7.2.post1"  # beside vLLM 0.33.0
SHIM = """\
from flashinfer_jit_cache_{arch} import provider
__version__ = "{version}"
def get_jit_cache_providers():
    return (provider(),)
"""
PROVIDER = """\
from pathlib import Path
from types import SimpleNamespace
def provider():
    return SimpleNamespace(
        provider_id="{arch}", distribution="flashinfer-jit-cache-{arch}", version="{version}",
        jit_cache_dir=Path(__file__).parent, cuda_architectures=frozenset({{"{arch}"}}), modules=frozenset({{"page"}}))
"""
BUILD = "from flashinfer.jit.page import gen_page_module as page; page().build(False)"
# Compilers can't run here: what is loaded was there before.
LOAD = """\
import ctypes, os
from flashinfer.jit.page import gen_page_module
spec = gen_page_module()
spec.build = lambda *_, **__: print("COMPILES")
spec.load = lambda path: (print("LOADS", path), ctypes.CDLL(str(path), os.RTLD_LAZY))[1]
spec.try_load() or spec.build()
"""
LIST = """\
import json, sys
from envgen.inside.jit.main import answer
print(json.dumps(answer(json.loads(sys.argv[1]))["result"]))
"""


class Machine:
    """A release's Python, a folder for packages before its own, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.python = environment("0.33.0")
        (site,) = self.python.parents[1].glob("lib/python3*/site-packages")
        self.cuda, self.packages = site / "nvidia/cu13", folder / "packages"
        self.root = folder / ".cache/flashinfer"
        self.stubs, self.cuda_home = folder / "stubs", folder / "cuda"
        for path in (self.packages, self.stubs, self.cuda_home / "lib64"):
            path.mkdir(parents=True)
        for name in ("bin", "include", "nvvm"):
            (self.cuda_home / name).symlink_to(self.cuda / name)
        for library in (self.cuda / "lib").glob("libcudart.so*"):
            (self.cuda_home / "lib64" / library.name).symlink_to(library)
        (self.cuda_home / "lib64/libcudart.so").symlink_to("libcudart.so.13")
        words = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(self.stubs / "libcuda.so")]
        subprocess.run(words, check=True)

    def run(self, program: str, *words: str) -> str:
        env = {
            **os.environ, "FLASHINFER_WORKSPACE_BASE": str(self.root.parents[1]), "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
            "CUDA_HOME": str(self.cuda_home), "LIBRARY_PATH": str(self.stubs), "MAX_JOBS": "1",
            "NVCC_APPEND_FLAGS": "-O0 -Xcicc -O0 -Xptxas -O0", "LD_LIBRARY_PATH": str(self.cuda_home / "lib64"),
            "PYTHONPATH": f"{self.packages}:{Path(__file__).parents[2]}",
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run([self.python, "-c", program, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def listed(self) -> Mapping[str, Any]:
        request = {"operation": "list", "root": str(self.root), "expected_archs": ["121a"], "patterns": []}
        answer: dict[str, Any] = json.loads(self.run(LIST, json.dumps(request)).splitlines()[0])
        return answer

    def install(self, index: str, version: str, arch: str, digest: str) -> None:
        """As a build does it: from the index, with the digest of the lock."""
        names = ("flashinfer-jit-cache", f"flashinfer-jit-cache-{arch}")
        asked = self.packages.with_name("asked.txt")
        shim, provider = digest.split()
        asked.write_text(
            f"{names[0]}=={version} --hash=sha256:{shim}\n{names[1]}=={version} --hash=sha256:{provider}\n"
        )
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-cache", "--no-deps", "--require-hashes"]
        where = ["--default-index", index, "--target", str(self.packages), "--python", str(self.python)]
        subprocess.run([*uv, *where, "--reinstall", "-r", str(asked)], check=True)


def wheel(top: Path, name: str, version: str, files: Mapping[str, bytes]) -> str:
    """Write a wheel into the index; its digest."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    held = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    held[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*held, f"{info}/RECORD"]).encode()
    folder = top / "simple" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in held.items():
            archive.writestr(member, content)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with (folder / "index.html").open("a") as page:
        page.write(f'<a href="{path.name}#sha256={digest}">{path.name}</a>\n')
    return digest


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("prebuilt"))


@pytest.fixture(scope="module")
def library(machine: Machine) -> bytes:
    """The module as the real nvcc compiled it."""
    machine.run(BUILD)
    (path,) = machine.root.rglob("page.so")
    return path.read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as address:
        yield f"{address}/simple"


# Version, GPU, whether it is loaded, and what `cache list` says.
FORMS = (
    (f"{FLASHINFER}+cu130", "sm121a", True, "1 modules for 121a"),
    ("0.7.1+cu130", "sm121a", False, f"FlashInfer {FLASHINFER} ignores flashinfer-jit-cache 0.7.1+cu130"),
    (f"{FLASHINFER}+cu130", "sm90a", False, "FlashInfer compiles all, because none of them is for 121a"),
    (f"{FLASHINFER}+cu129", "sm121a", False, "1 modules for 121a, which need libcudart.so.12: FlashInfer compiles"),
)


@pytest.mark.parametrize(("version", "arch", "loads", "said"), FORMS)
def test_it_is_loaded_or_it_is_said_who_refuses_it(
    machine: Machine, library: bytes, index: str, tmp_path: Path, version: str, arch: str, loads: bool, said: str
) -> None:
    module = f"flashinfer_jit_cache_{arch}"
    content = library.replace(b"libcudart.so.13", b"libcudart.so.12") if "cu129" in version else library
    texts = {"version": version, "arch": arch}
    shim = {"flashinfer_jit_cache/__init__.py": SHIM.format(**texts).encode()}
    provider = {f"{module}/__init__.py": PROVIDER.format(**texts).encode(), f"{module}/page/page.so": content}
    digests = [
        wheel(tmp_path, "flashinfer-jit-cache", version, shim),
        wheel(tmp_path, f"flashinfer-jit-cache-{arch}", version, provider),
    ]
    machine.install(index, version, arch, " ".join(digests))
    printed = machine.run(LOAD)
    place = machine.packages / module / "page/page.so"
    assert (f"LOADS {place}" in printed, "COMPILES" in printed) == (loads or "cu129" in version, not loads), printed
    answer = machine.listed()
    inventory = Inventory("/", True, package=ImportedPackage(**answer["package"]))
    lines = "\n".join(cache_lines.inventory(inventory))
    assert f"prebuilt: flashinfer-jit-cache-{arch} {version}: {said}" in lines or f"prebuilt: {said}" in lines
    (page,) = answer["modules"]
    assert (page["state"] == "masked") == (loads or "cu129" in version)
