"""What is kept is not compiled again: restored caches, namespaces, switching there and back. Real FlashInfer, real
ninja, real nvcc, a real engine; see jit_lab.py."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from jit_lab import CACHE, Envgen, Lab
from projects import docker

from envgen.profile.load import load_project, select
from envgen.render.locking import lock_of
from envgen.render.outputs import render_profile

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


def test_with_times_of_its_own_it_would_be(lab: Lab, envgen: Envgen) -> None:
    """Why times are kept: unpacked with new ones, ninja compiles all again; cut to whole seconds, the baseline no
    longer knows the library."""
    lab.start()
    envgen("warm", "page")
    assert not would_build(lab, "page", "0.7.2.post1")
    ops = f"{CACHE}/0.5.3/121a/cached_ops"
    lab.sh(f"touch -d @$(stat -c %Y {ops}/page/page.so) {ops}/page/page.so")
    assert "the baseline is of an earlier build" in envgen("why", "page", "--version", "0.5.3")
    lab.sh(f"find {CACHE} -type f -exec touch {{}} +")
    assert would_build(lab, "page", "0.5.3")
    assert would_build(lab, "page", "0.7.2.post1")


def test_there_and_back_compiles_nothing(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """Another arch list is another namespace; back on the first, its modules are as they were."""
    file = tmp_path / "envgen.yaml"
    file.write_text(file.read_text().replace(", namespace: false", ""))
    volumes = {arch: rendered_volume(file, arch) for arch in ("12.1a", "12.0f")}
    assert len(set(volumes.values())) == 2
    try:
        lab.start(volume=volumes["12.1a"])
        page = lab.times("page")
        lab.stop()
        lab.prebuilt = False
        lab.start(volume=volumes["12.0f"])
        assert lab.times("page") == {}
        lab.stop()
        # Nothing runs: a temporary container looks into the namespace of the profile as it stands now.
        found = envgen.json("list", "--version", "0.5.3")["modules"]
        assert [module["name"] for module in found] == ["page", "vllm_comm"]
        assert envgen.json("list", "--set", "cuda.arch_list=12.0f")["modules"] == []

        lab.start(volume=volumes["12.1a"])
        lab.build("page")  # by its unchanged times, ninja had nothing to do
        assert lab.times("page") == page
    finally:
        lab.stop()
        docker("volume", "rm", "-f", *volumes.values(), check=False)


def rendered_volume(file: Path, arch: str) -> str:
    """What Compose would mount, from the rendered file."""
    import yaml

    project = load_project(file=file, sets=(f"cuda.arch_list={arch}",)).project
    profile = select(project, None)
    text = render_profile(profile, lock_of(profile, project.root), root=project.root).files["compose/dev.yaml"]
    return str(yaml.safe_load(text)["volumes"]["cache-flashinfer"]["name"])
