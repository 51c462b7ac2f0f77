"""The shipped profiles `source_dev` and `source` for real: from checkouts to an image with the patches of their edits.

vLLM 0.14.0 and FlashInfer 0.5.3, all that they depend on, the real nvcc and one extension of FlashInfer. Stand-ins: the
base image, with PyTorch's CPU build; vLLM is built for no device, as its own CMake would take hours.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jit_lab import WHEELS
from lock_servers import git_daemon
from projects import BASE, Project, docker, forget

from envgen.engine.client import Engine
from envgen.engine.git import git

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

TOP = Path(__file__).parents[2]
NAME = "envgensource"
NVCC = f"""\
FROM {BASE}
COPY wheels /wheels
RUN python3 -m pip install -q --no-index --no-deps --target /opt/cuda /wheels/*.whl \\
 && rm -rf /usr/local/cuda && ln -s /opt/cuda/nvidia/cu13 /usr/local/cuda && cd /usr/local/cuda \\
 && chmod -R a+rx bin nvvm/bin && ln -s lib lib64 && ln -s libcudart.so.13 lib/libcudart.so \\
 && mkdir lib/stubs && echo 'void envgen_stub(void) {{}}' | gcc -shared -fPIC -x c - -o lib/stubs/libcuda.so
ENV CUDA_HOME=/usr/local/cuda LIBRARY_PATH=/usr/local/cuda/lib64/stubs NVCC_APPEND_FLAGS="-O0 -Xcicc -O0 -Xptxas -O0"
"""
RELEASES = {
    "flashinfer": ("flashinfer-python==0.5.3", "flashinfer/_build_meta.py"),
    "vllm": ("vllm==0.14.0", "vllm/_version.py"),
}


def nvcc_base(name: str, folder: Path) -> None:
    """Build the stand-in base with the real nvcc, as ``name``."""
    pins = [pin for pin in WHEELS if pin.startswith("nvidia_") and "ml" not in pin]
    subprocess.run([TOP / "scripts/fetch-wheel", *pins, folder / "wheels"], check=True, capture_output=True)
    (folder / "Dockerfile").write_text(NVCC)
    docker("build", "-q", "-t", name, str(folder), timeout=900)


def clone(folder: Path, release: str, generated: str) -> Path:
    """A source archive as its repository has it: without what a build writes, and FlashInfer's with its version."""
    subprocess.run([sys.executable, TOP / "scripts/fetch-source", release, folder], check=True, capture_output=True)
    (folder / generated).unlink()
    if release.startswith("flashinfer"):
        (folder / "version.txt").write_text(release.partition("==")[2])
    for words in (["add", "-A"], ["commit", "-qm", "as cloned"], ["tag", "-f", f"v{release.partition('==')[2]}"]):
        git(words, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def made(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The shipped project under another name, without weights; its checkouts lie where the profile says."""
    del engine
    root = tmp_path_factory.mktemp("source")
    nvcc_base(f"{NAME}-base:1", root / "nvcc")
    bare = root / "srv"
    for name, (release, generated) in RELEASES.items():
        folder = clone(root / f"{name}-source", release, generated)
        git(["clone", "-q", "--bare", str(folder), str(bare / f"{name}.git")], cwd=root)
    project = root / "project"
    shutil.copytree(TOP / "patches", project / "patches")
    text = (TOP / "envgen.yaml").read_text().replace("name: mxfp4\n", f"name: {NAME}\n")
    (project / "envgen.yaml").write_text(text)
    forget(NAME)
    found = Project(project, NAME)
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with git_daemon(bare, gateway) as address:
        own = {
            "base": {"image": f"{NAME}-base:1"}, "tiktoken": None, "gpu": "none", "ulimits": None,
            "caches": {"huggingface": {"host": None}}, "services": {"serve": {"model": None, "ready": None}},
        }  # fmt: skip
        empty = {"install": {"env": {"VLLM_TARGET_DEVICE": "empty"}, "inputs": None}}
        servers = {name: {"origin": {"git": f"{address}/{name}.git"}} for name in RELEASES}
        local = {
            "source_dev": {**own, "sources": {"vllm": {"install": {"env": empty["install"]["env"]}}}},
            "source": {**own, "sources": {**servers, "vllm": {**servers["vllm"], **empty}}},
        }
        (project / "envgen.local.yaml").write_text(json.dumps({"profiles": local}))
        try:
            yield found
        finally:
            for profile in ("source_dev", "source"):
                found.envgen("down", "-p", profile, "--volumes", code=None)
                docker("image", "rm", "-f", f"{NAME}:{profile}", check=False)
            docker("image", "rm", "-f", f"{NAME}-base:1", check=False)


ASK = """\
import importlib.metadata as meta, flashinfer, vllm, torch
print(vllm.__file__, meta.version("vllm"), flashinfer.__file__, meta.version("flashinfer-python"), torch.__file__)
"""
MARK = "from vllm import envs; print(vars(envs)['MINE'])"


def test_from_two_checkouts_to_an_image_with_their_edits(made: Project) -> None:
    checkouts = {name: made.root.parent / f"{name}-source" for name in RELEASES}

    # Everything is installed from the checkouts, with the base image's torch; no file of theirs is changed.
    started = made.envgen("up", "dev", "-p", "source_dev", "--yes")
    for folder in checkouts.values():
        assert git(["status", "--porcelain", "--untracked-files=no"], cwd=folder).text == ""
    vllm, version, flashinfer, release, torch = made.envgen(
        "exec", "-p", "source_dev", "dev", "--", "python3", "-c", ASK
    ).out.split()[-5:]
    assert (vllm, flashinfer) == ("/workspace/vllm/vllm/__init__.py", "/workspace/flashinfer/flashinfer/__init__.py")
    assert (version, release) == ("0.14.0+empty", "0.5.3")
    assert torch.startswith("/usr/")

    # The commands that `up` names apply the patches of `source`.
    commands = re.findall(r"lacks 0001-.*: (cat .*)\n", started.err)
    assert len(commands) == 2, started.err
    for command in commands:
        subprocess.run(["sh", "-c", command], check=True, cwd=made.root)
    report = made.envgen("doctor", "-p", "source_dev").out
    assert "vllm is /workspace/vllm/vllm/__init__.py" in report and "lacks" not in report

    # An edit of Python and one of a kernel.
    with (checkouts["vllm"] / "vllm/envs.py").open("a") as file:
        file.write("MINE = 42\n")
    assert made.envgen("exec", "-p", "source_dev", "dev", "--", "python3", "-c", MARK).out.strip() == "42"
    assert "page: compiled in" in made.envgen("cache", "warm", "page", "-p", "source_dev").out
    with (checkouts["flashinfer"] / "include/flashinfer/page.cuh").open("a") as file:
        file.write("// mine\n")
    why = made.envgen("cache", "why", "page", "-p", "source_dev", code=1).out
    assert "page (0.5.3/121a): stale" in why and "/workspace/flashinfer/include/flashinfer/page.cuh" in why
    assert "the compiled kernel page is stale" in made.envgen("doctor", "-p", "source_dev").out

    # Their patches are for `source` alone, which has the two series already.
    before = (made.root / "envgen.yaml").read_text()
    for name, title in (("vllm", "my-python"), ("flashinfer", "my-kernel")):
        done = made.envgen("patch", "new", title, name, "-p", "source_dev", "--yes")
        assert "taken by source\n" in done.err
        assert (made.root / done.out.strip()).read_text().count("diff --git") == 1
    assert (made.root / "envgen.yaml").read_text() == before

    # `source` with these patches: the same code, from an image.
    made.envgen("build", "-p", "source")
    made.envgen("up", "dev", "-p", "source")
    words = ("exec", "-p", "source", "dev", "--")
    assert made.envgen(*words, "python3", "-c", MARK).out.strip() == "42"
    kernel = "import flashinfer, os; print(os.path.dirname(flashinfer.__file__) + '/data/include/flashinfer/page.cuh')"
    place = made.envgen(*words, "python3", "-c", kernel).out.split()[-1]
    assert "/site-packages/" in place or "/dist-packages/" in place
    assert made.envgen(*words, "tail", "-n", "1", place).out == "// mine\n"
    assert "vllm/0006-my-python (envs.py)" in made.envgen("doctor", "-p", "source").out
