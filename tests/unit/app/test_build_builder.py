"""Builds for another platform, or by another builder, than the engine's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.app.build import Job, job_of, require_builder
from envgen.deployment import Deployment
from envgen.engine.buildx import Options
from envgen.errors import RefusedError
from envgen.profile.load import load_project

FILE = """\
version: 1
name: t
default_profile: p
profiles: {p: {mode: production, base: {image: "nvcr.io/x:1", platform: linux/arm64}, cuda: {arch_list: 12.1a}}}
"""


def job(folder: Path, options: Options) -> Job:
    (folder / "envgen.yaml").write_text(FILE)
    return job_of(Deployment(load_project(file=folder / "envgen.yaml").project.profiles["p"], folder), options)


def test_only_what_is_pushed_goes_by_its_tags_alone(tmp_path: Path) -> None:
    made = job(tmp_path, Options(tags=("r.example/x:1",)))
    assert made.request.tags == (made.image, "r.example/x:1")
    assert job(tmp_path, Options(tags=("r.example/x:1",), push=True)).request.tags == ("r.example/x:1",)


def test_podman_builds_with_a_named_builder_alone() -> None:
    with pytest.raises(RefusedError, match="Podman has no BuildKit") as caught:
        require_builder("default", "Podman")
    assert "BUILDX_BUILDER=envgen envgen build" in caught.value.problems[0].hint
    require_builder("envgen", "Podman")
