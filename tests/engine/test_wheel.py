"""The wheel, in an empty environment outside the checkout: init, render, build; and the committed files."""

from __future__ import annotations

from pathlib import Path

from installed_wheel import run
from projects import BASE, docker

from envgen.engine.client import Engine


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
