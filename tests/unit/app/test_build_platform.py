"""Builds for another platform, or by another builder, than the local base image's: what the cause is; refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app.build import Job, Options, buildable, job_of, request_of, unseen_base
from envgen.engine import buildx
from envgen.engine.buildx import BuildResult
from envgen.engine.client import Engine
from envgen.errors import RefusedError
from envgen.profile.load import load_project

FILE = """\
version: 1
name: t
default_profile: p
profiles: {p: {mode: production, base: {image: "nvcr.io/x:1", platform: linux/arm64}, cuda: {arch_list: 12.1a}}}
"""
LOOKUP = "ERROR: failed to resolve source metadata for nvcr.io/x:1: dial tcp: lookup nvcr.io: no such host"


def engine(architecture: str) -> Engine:
    found = SimpleNamespace(architecture=architecture) if architecture else None
    return cast(Engine, SimpleNamespace(image=lambda name: found if name == "nvcr.io/x:1" else None))


@pytest.mark.parametrize(
    ("architecture", "error", "told"),
    [("amd64", LOOKUP, True), ("arm64", LOOKUP, False), ("", LOOKUP, False), ("amd64", "ERROR: exit code: 1", False)],
)
def test_the_platform_is_the_cause(tmp_path: Path, architecture: str, error: str, told: bool) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE)
    profile: Any = load_project(file=tmp_path / "envgen.yaml").project.profiles["p"]
    cause = unseen_base(profile, engine(architecture), BuildResult(1, "", 1.0, (), None, error))
    assert (cause is not None) is told
    if cause is not None:
        assert cause.summary == "the engine has nvcr.io/x:1 for amd64 alone, base.platform asks for linux/arm64"
        assert "docker pull --platform linux/arm64 nvcr.io/x:1" in cause.cure


def job(folder: Path) -> Job:
    (folder / "envgen.yaml").write_text(FILE)
    return job_of(load_project(file=folder / "envgen.yaml").project.profiles["p"], folder)


def test_another_builder_does_not_see_the_engine_s_images(tmp_path: Path) -> None:
    failed = BuildResult(1, "", 1.0, (), None, LOOKUP)
    cause = unseen_base(job(tmp_path).profile, engine("arm64"), failed, "farm")
    assert cause is not None and "the builder 'farm' (BUILDX_BUILDER) does not see" in cause.summary
    assert unseen_base(job(tmp_path).profile, engine(""), failed, "farm") is None


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
