"""Builds for another platform, or by another builder, than the engine's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from envgen.app.build import Job, buildable, job_of, request_of
from envgen.engine import buildx
from envgen.engine.buildx import Options
from envgen.engine.client import Engine
from envgen.errors import RefusedError
from envgen.profile.load import load_project

FILE = """\
version: 1
name: t
default_profile: p
profiles: {p: {mode: production, base: {image: "nvcr.io/x:1", platform: linux/arm64}, cuda: {arch_list: 12.1a}}}
"""


def job(folder: Path) -> Job:
    (folder / "envgen.yaml").write_text(FILE)
    return job_of(load_project(file=folder / "envgen.yaml").project.profiles["p"], folder)


def test_only_what_is_pushed_goes_by_its_tags_alone(tmp_path: Path) -> None:
    made = job(tmp_path)
    assert request_of(made, Options(tags=("r.example/x:1",))).tags == (made.image, "r.example/x:1")
    assert request_of(made, Options(tags=("r.example/x:1",), push=True)).tags == ("r.example/x:1",)


@pytest.mark.parametrize(
    ("builder", "has", "refused"),
    [
        ("default", ("linux/amd64", "linux/arm64"), False),
        ("default", ("linux/amd64",), True),
        ("farm", ("linux/arm64",), False),
        ("farm", (), True),
    ],
)
def test_a_platform_that_the_builder_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: str, has: tuple[str, ...], refused: bool
) -> None:
    monkeypatch.setattr(buildx, "platforms", {builder: has}.__getitem__)
    request = request_of(job(tmp_path), Options(builder=builder))
    amd64 = cast(Engine, SimpleNamespace(info=lambda: SimpleNamespace(arch="amd64", product="Docker")))
    if not refused:
        buildable(request, amd64)
        return
    with pytest.raises(RefusedError, match=f"the builder '{builder}' cannot run linux/arm64: it has") as caught:
        buildable(request, amd64)
    assert "tonistiigi/binfmt --install arm64" in caught.value.problems[0].hint


def test_the_engine_s_own_platform_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildx, "platforms", lambda _builder: pytest.fail("asked"))
    arm64 = cast(Engine, SimpleNamespace(info=lambda: SimpleNamespace(arch="arm64", product="Docker")))
    buildable(request_of(job(tmp_path), Options()), arm64)


def test_podman_builds_with_a_named_builder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildx, "platforms", lambda _builder: ("linux/arm64",))
    podman = cast(Engine, SimpleNamespace(info=lambda: SimpleNamespace(arch="arm64", product="Podman")))
    with pytest.raises(RefusedError, match="Podman has no BuildKit") as caught:
        buildable(request_of(job(tmp_path), Options()), podman)
    assert "BUILDX_BUILDER=envgen envgen build" in caught.value.problems[0].hint
    buildable(request_of(job(tmp_path), Options(builder="envgen")), podman)
