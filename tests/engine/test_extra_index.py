"""A package with a local version, as prebuilt kernels have it, from an index beside the first: locked with its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import Project
from toy_index import RELEASES, toy_project, write_index

pytestmark = pytest.mark.engine

VERSION = "0.7.2.post1+cu130"
KERNELS = ("flashinfer-jit-cache", "flashinfer-jit-cache-sm121a")


def test_it_is_in_the_lock(make_project: Callable[..., Project], tmp_path: Path) -> None:
    with toy_project(make_project, "extraindex", tmp_path) as project:
        write_index(tmp_path, [*RELEASES, *[(name, VERSION, [], "") for name in KERNELS]])
        file = project.root / "envgen.yaml"
        tools = ", ".join(f"{name}=={VERSION}" for name in KERNELS)
        file.write_text(file.read_text().replace("tools: [llama-benchy]", f"tools: [{tools}]"))
        project.envgen("lock")
        lock = (project.root / "envgen.lock").read_text()
    for name in KERNELS:
        (wheel,) = (tmp_path / "simple" / name).glob("*.whl")
        assert f"{name}=={VERSION}" in lock and hashlib.sha256(wheel.read_bytes()).hexdigest() in lock
