"""A production build tries its patches on the locked commit of a branch."""

from __future__ import annotations

from pathlib import Path

import pytest
from lock_servers import git_daemon
from patch_sources import VLLM, checkout, project
from projects import BASE, docker

from envgen.engine.client import Engine
from envgen.engine.git import git

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


def test_build_tries_the_locked_commit(engine: Engine, tmp_path: Path) -> None:
    """The branch has moved to a source that the patches do not fit; the lock has not."""
    del engine
    (tmp_path / "project").mkdir()
    made = project(tmp_path / "project")
    bare = tmp_path / "srv/vllm.git"
    work = checkout(tmp_path / "work", "vllm", "0.14.0")
    git(["clone", "-q", "--bare", str(work), str(bare)], cwd=tmp_path)
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    base = "envgentestcarry:base"
    docker("build", "-q", "-t", base, "-", stdin=f"FROM {BASE}\nLABEL carry=1\n")
    try:
        with git_daemon(bare.parent) as address:
            text = (made.root / "envgen.yaml").read_text()
            text = text.replace(VLLM, f"git: {address}/vllm.git, ref: main")
            start, end = text.index("      flashinfer:"), text.index("      vllm:")
            (made.root / "envgen.yaml").write_text((text[:start] + text[end:]).replace(BASE, base))
            made.envgen("lock", env=own)
            locked = git(["rev-parse", "main"], cwd=bare).text
            for path in (work / "vllm").rglob("*.py"):
                path.write_text("# rewritten\n")
            git(["commit", "-qam", "away"], cwd=work)
            git(["push", "-qf", str(bare), "HEAD:main"], cwd=work)
            moved = made.envgen("build", "--unlocked", env=own, code=4)
            assert "patches do not fit, so nothing was built" in moved.err
            out = made.envgen("patch", "check", "vllm", env=own).out
            assert f"locked at {locked[:12]}" in out
            (made.root / "envgen.yaml").write_text((made.root / "envgen.yaml").read_text() + "\n")
            # What comes after the dry run is stopped at once: the build's own program is not there.
            done = made.envgen("build", env={**own, "DOCKER_CONFIG": str(tmp_path), "PATH": "/usr/bin:/bin"}, code=None)
            assert f"5 patches fit main of {address}/vllm.git, locked at {locked[:12]}" in done.err
    finally:
        docker("image", "rm", "-f", base, f"{made.name}:prod", check=False)
