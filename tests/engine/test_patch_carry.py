"""Patches and what moves: files that upstream has renamed, and refs that point elsewhere than the lock says."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from lock_servers import git_daemon
from patch_sources import checkout, project, tree
from projects import BASE, Project, docker

from envgen.engine.git import git
from envgen.patches.header import head_of
from envgen.patches.refresh import successors

# Real moves of vLLM between 0.14.0 and 0.16.0.
MOVED = {
    "vllm/compilation/noop_elimination.py": "vllm/compilation/passes/utility/noop_elimination.py",
    "vllm/compilation/activation_quant_fusion.py": "vllm/compilation/passes/fusion/act_quant_fusion.py",
}


@pytest.fixture
def made(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return project(tmp_path / "project")


def test_refresh_follows_renamed_files(made: Project) -> None:
    text = "Description: mark\n\n"
    for name, file in tree("vllm", "0.14.0").read(MOVED).items():
        old = file.data.decode().splitlines(keepends=True)
        place = next(number for number, line in enumerate(old) if line.startswith("class "))
        new = [*old[:place], "MARK = 1\n", "\n", "\n", *old[place:]]
        text += "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    (made.root / "patches/vllm/0001-mark.patch").write_text(text)
    (made.root / "patches/vllm/series").write_text("0001-mark.patch\n")
    found = made.envgen("patch", "refresh", "vllm", "--release", "0.16.0", "--json").json
    assert sorted(found["patches"][0]["moved"]) == sorted(MOVED.values())
    assert made.envgen("patch", "check", "vllm", "--release", "0.16.0").out.count(": applies\n") == 1
    content = (made.root / "patches/vllm/0001-mark.patch").read_bytes()
    assert head_of(content) == b"Description: mark\n\n"
    assert content.count(b"\n+MARK = 1\n") == 2
    for name, now in MOVED.items():
        assert f"+++ b/{now}\n".encode() in content
        assert f"/{name}".encode() not in content


def test_what_vanished_for_good_is_a_conflict(made: Project) -> None:
    name = "vllm/_ipex_ops.py"
    old = tree("vllm", "0.14.0").read([name])[name].data.decode().splitlines(keepends=True)
    text = "".join(difflib.unified_diff(old, ["MARK = 1\n", *old], f"a/{name}", f"b/{name}"))
    (made.root / "patches/vllm/0001-mark.patch").write_text(text)
    (made.root / "patches/vllm/series").write_text("0001-mark.patch\n")
    found = made.envgen("patch", "refresh", "vllm", "--release", "0.16.0", code=1)
    assert f"{name}" in found.out
    assert (made.root / "patches/vllm/0001-mark.patch").read_text() == text


def test_successors_are_new_files_of_the_same_kind() -> None:
    old, new = {"a/x.py", "a/y.py"}, {"a/y.py", "b/x.py", "a/z.py", "b/x.md"}
    assert successors({"a/x.py"}, old, new) == ["a/z.py", "b/x.py"]


def test_build_rehearses_the_locked_commit(made: Project, tmp_path: Path) -> None:
    """The branch has moved to a source that the patches do not fit; the lock has not."""
    bare = tmp_path / "srv/vllm.git"
    work = checkout(tmp_path / "work", "vllm", "0.14.0")
    git(["clone", "-q", "--bare", str(work), str(bare)], cwd=tmp_path)
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    base = "envgentestcarry:base"
    docker("build", "-q", "-t", base, "-", stdin=f"FROM {BASE}\nLABEL carry=1\n")
    try:
        with git_daemon(bare.parent) as address:
            text = (made.root / "envgen.yaml").read_text()
            text = text.replace("pypi: vllm==0.14.0", f"git: {address}/vllm.git, ref: main")
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
            # What comes after the rehearsal is stopped at once: the build's own program is not there.
            done = made.envgen("build", env={**own, "DOCKER_CONFIG": str(tmp_path), "PATH": "/usr/bin:/bin"}, code=None)
            assert f"3 patches fit main of {address}/vllm.git, locked at {locked[:12]}" in done.err
    finally:
        docker("image", "rm", "-f", base, f"{made.name}:prod", check=False)
