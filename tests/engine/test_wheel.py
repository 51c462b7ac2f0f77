"""The wheel, in an empty environment outside the checkout: init, render, build; and the committed files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_wheel import CHECKOUT, run
from projects import BASE, docker

from envgen.engine.client import Engine

CUDA = "nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04"


def test_init_render_and_build(engine: Engine, installed: Path, tmp_path: Path) -> None:
    run(installed, "init", "fresh", "--name", "wheeltest", cwd=tmp_path)
    project = tmp_path / "fresh"
    run(installed, "render", cwd=project)
    assert (project / "Dockerfile").is_file()
    run(installed, "render", "--check", cwd=project)
    # Its real wheels are 4 GB, on another base: scripts/build-prod --dev builds with those.
    smaller = (f"base.image={BASE}", "base.apt=[]", "apt.runtime=[]", "pip.deps=[]", "sources.vllm.binaries=null",
               "sources.flashinfer.binaries=null", "tiktoken.encodings=null")  # fmt: skip
    small = [word for one in smaller for word in ("--set", one)]
    try:
        built = run(installed, "build", "--profile", "dev", *small, cwd=project)
        assert "built wheeltest:dev" in built.stdout
        image = engine.image("wheeltest:dev")
        assert image is not None
        assert image.labels["dev.envgen.project"] == "wheeltest"
    finally:
        docker("image", "rm", "-f", "wheeltest:dev", check=False)


@pytest.fixture
def cuda(engine: Engine) -> Iterator[None]:
    """The name of NVIDIA's CUDA image, where it is missing: the linter wants to see the base image's metadata."""
    is_missing = engine.image(CUDA) is None
    if is_missing:
        docker("tag", BASE, CUDA)
    yield
    if is_missing:
        docker("image", "rm", CUDA)


def test_everything_that_is_rendered_is_clean(cuda: None, installed: Path) -> None:
    """Docker's own linter and Compose's own reader, on the committed files as they are."""
    for name in ("Dockerfile", "Dockerfile.dev", "Dockerfile.source"):
        checked = run("docker", "buildx", "build", "--check", "-f", name, ".", cwd=CHECKOUT)
        assert "no warnings found" in checked.stdout + checked.stderr
    for path in sorted((CHECKOUT / "compose").glob("*.yaml")):
        base = path.with_name(path.name.split(".")[0] + ".yaml")
        files = ["-f", str(base)] + (["-f", str(path)] if path != base else [])
        run("docker", "compose", *files, "config", "-q", cwd=CHECKOUT)
