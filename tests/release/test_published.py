"""What others install: the wheel by uv in an empty environment, the hooks by the real pre-commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent  # uv, twine and pre-commit are there: the development environment's


def run(*words: str | Path, cwd: Path, env: dict[str, str], code: int = 0) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nothing of the development environment on PATH, and folders of its own for all that is installed."""
    home = tmp_path_factory.mktemp("home")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ENVGEN_", "GIT_", "VIRTUAL_ENV", "PYTHON"))}
    return {
        **clean,
        "PATH": f"{home}/bin:/usr/bin:/bin",
        "UV_TOOL_DIR": f"{home}/tools",
        "UV_TOOL_BIN_DIR": f"{home}/bin",
        "PRE_COMMIT_HOME": f"{home}/hooks",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> list[Path]:
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "uv", "build", "-q", "--python", sys.executable, "-o", folder, TOP, cwd=folder, env=env)
    return sorted(folder.glob("envgen-*"))


def test_the_index_would_take_both(built: list[Path], env: dict[str, str]) -> None:
    assert [path.name.rpartition(".")[2] for path in built] == ["whl", "gz"]
    run(BIN / "twine", "check", "--strict", *built, cwd=TOP, env=env)


def test_the_wheel_alone_renders_a_project(built: list[Path], env: dict[str, str], tmp_path: Path) -> None:
    run(BIN / "uv", "tool", "install", "-q", "--python", sys.executable, built[0], cwd=tmp_path, env=env)
    program = shutil.which("envgen", path=env["PATH"])
    assert program is not None
    first, second = run(program, "--version", cwd=tmp_path, env=env).splitlines()
    assert first.startswith("envgen ") and "click " in second
    run(program, "init", ".", cwd=tmp_path, env=env)
    run(program, "render", cwd=tmp_path, env=env)
    run(program, "render", "--check", cwd=tmp_path, env=env)


def test_pre_commit_runs_the_hook(built: list[Path], env: dict[str, str], tmp_path: Path) -> None:
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    # The hooks' repository, as pre-commit installs one: the source distribution, committed.
    hooks.mkdir()
    run("tar", "-xzf", built[1], "--strip-components=1", cwd=hooks, env=env)
    shutil.copy(TOP / ".pre-commit-hooks.yaml", hooks)
    project.mkdir()
    for folder in (hooks, project):
        run("git", "init", "-q", "-b", "main", cwd=folder, env=env)
    run(BIN / "envgen", "init", ".", cwd=project, env=env)
    for folder in (hooks, project):
        run("git", "add", "-A", cwd=folder, env=env)
        run("git", "commit", "-q", "-m", "x", cwd=folder, env=env)
    words: list[str | Path] = [BIN / "pre-commit", "try-repo", hooks, "envgen-render", "--all-files", "--verbose"]
    missing = run(*words, cwd=project, env=env, code=1)
    assert "Dockerfile" in missing
    run(BIN / "envgen", "render", cwd=project, env=env)
    assert "Passed" in run(*words, cwd=project, env=env)
