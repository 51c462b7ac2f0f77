"""A build for another platform than the local base image's: the registry's trouble is not the cause."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app.build import other_platform
from envgen.engine.base import Engine
from envgen.engine.buildx import BuildResult
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
    cause = other_platform(profile, engine(architecture), BuildResult(1, "", 1.0, (), None, error))
    assert (cause is not None) is told
    if cause is not None:
        assert cause.summary == "the engine has nvcr.io/x:1 for amd64 alone, base.platform asks for linux/arm64"
        assert "docker pull --platform linux/arm64 nvcr.io/x:1" in cause.cure
