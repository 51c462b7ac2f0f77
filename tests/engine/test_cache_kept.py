"""What is kept is not compiled again: restored caches, namespaces, switching there and back. Real FlashInfer, real
ninja, real nvcc, a real engine; see jit_lab.py."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from jit_lab import CACHE, Envgen, Lab
from projects import docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def lab(jit_lab: Lab) -> Lab:
    return jit_lab


@pytest.fixture
def envgen(cache_command: Envgen) -> Envgen:
    return cache_command


def would_build(lab: Lab, module: str, version: str) -> bool:
    """Asks the container's ninja, dry, as FlashInfer would ask it to build."""
    ops = f"{CACHE}/{version}/121a/cached_ops"
    folder = ops if version == "0.5.3" else f"{ops}/{module}"
    printed = lab.sh(f"ninja -n -C {folder} -f {ops}/{module}/build.ninja")
    assert "no work to do" in printed or "cuda_compile" in printed or "nvcc" in printed or "[1/" in printed, printed
    return "no work to do" not in printed


def tar(*words: str, **more: Any) -> None:
    """As docs/jit-cache.md says it: GNU tar, in a container of the image."""
    subprocess.run(
        ["docker", "run", "--rm", "-i", "--network", "none", "--entrypoint", "tar", *words], check=True, **more
    )


def test_a_restored_cache_is_not_compiled_again(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """FlashInfer 0.5.3 (one record for all modules) and 0.7.2 (absolute paths, one each), by its own build."""
    lab.start()
    before = {version: lab.times("page", version) for version in ("0.5.3", "0.7.2.post1")}
    envgen("warm", "page", "vllm_comm")  # compiles nothing, and records what they were compiled from
    kept = tmp_path / "kernels.tar.gz"
    with kept.open("wb") as out:
        cut = ("--exclude=./.envgen/gate", "--exclude=./.envgen-work-*")
        tar("-v", f"{lab.volume}:/cache:ro", lab.image, "--format=posix", *cut, "-C", "/cache", "-cz", ".", stdout=out)
    lab.stop()
    docker("volume", "rm", lab.volume)  # another machine: the same image, an empty cache
    lab.prebuilt = False
    with kept.open("rb") as archive:
        tar("-v", f"{lab.volume}:/cache", lab.image, "-C", "/cache", "-xz", stdin=archive)

    lab.start()
    assert lab.times("page") == before["0.5.3"]
    lab.build("page", "vllm_comm")
    assert lab.times("page") == before["0.5.3"]
    assert not would_build(lab, "page", "0.5.3")
    states = envgen.states()
    assert (states["0.5.3 page"], states["0.5.3 vllm_comm"]) == ("fresh", "fresh")  # kept with their baselines

    lab.start("new")
    lab.build("page")
    assert lab.times("page", "0.7.2.post1") == before["0.7.2.post1"]


def test_a_service_that_is_not_root_on_a_cache_that_is(lab: Lab, envgen: Envgen) -> None:
    """Root wrote it and the service's user can't even look: envgen is root inside, without sudo on the host."""
    lab.start()
    lab.prebuilt = False
    lab.start("wheel", "--user", "1000:1000")
    assert "Permission denied" in lab.sh(f"ls {CACHE} 2>&1 || true")
    ops = f"{CACHE}/0.5.3/121a/cached_ops"
    assert docker("exec", "-u", "0", lab.container, "ls", ops).split() == ["page", "tmp", "vllm_comm"]
    assert "removed page" in envgen("clear", "page", "--version", "0.5.3")
    assert docker("exec", "-u", "0", lab.container, "ls", ops).split() == ["tmp", "vllm_comm"]
