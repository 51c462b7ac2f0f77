"""What others install: both files of a release, the wheel in an empty environment of each Python, and the hooks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent  # uv, twine and pre-commit are there: the development environment's
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # those of pyproject.toml; one that can't be had fails its case
# Where pyenv keeps its Pythons, for only the chosen one is on PATH.
PYENV = sorted(map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin")))
LOG = TOP / "tests/unit/explain/logs/failures/unknown-flag.log"


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
    """The two files of the last commit: what is not committed is not released."""
    folder = tmp_path_factory.mktemp("dist")
    run(TOP / "scripts" / "dist", folder, cwd=folder, env={**env, "PATH": f"{BIN}:{env['PATH']}"})
    return sorted(folder.glob("envgen-*"))


def test_the_index_would_take_both(built: list[Path], env: dict[str, str]) -> None:
    assert [path.name.rpartition(".")[2] for path in built] == ["whl", "gz"]
    run(BIN / "twine", "check", "--strict", *built, cwd=TOP, env=env)


def test_a_second_build_makes_the_same_bytes(built: list[Path], env: dict[str, str], tmp_path: Path) -> None:
    """From a clone in another folder, later, by somebody with another umask, another time zone and files of his own."""
    clone = tmp_path / "clone"
    run("git", "clone", "-q", TOP, clone, cwd=tmp_path, env=env)
    for name in ("templates/mine~", "docker/build/__pycache__/fetch.pyc", "envgen/mine.py"):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).write_text("not committed")
    script = f"umask 077; sleep 2.1; exec {shlex.quote(str(clone / 'scripts' / 'dist'))}"
    theirs = {**env, "PATH": f"{BIN}:{env['PATH']}", "TZ": "Asia/Tokyo", "LC_ALL": "C", "TMPDIR": str(tmp_path)}
    run("sh", "-c", script, cwd=tmp_path, env=theirs)
    again = sorted((clone / "dist").glob("envgen-*"))
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_alone_works(version: str, built: list[Path], env: dict[str, str], tmp_path: Path) -> None:
    """In an environment of this Python that has nothing else; uv fetches a Python that is not here, if it can."""
    theirs = {**env, "PATH": os.pathsep.join([env["PATH"], *PYENV])}
    run(BIN / "uv", "venv", "-q", "--python", version, tmp_path / "venv", cwd=tmp_path, env=theirs)
    run(BIN / "uv", "pip", "install", "-q", "--python", tmp_path / "venv", built[0], cwd=tmp_path, env=theirs)
    python, program = (tmp_path / "venv" / "bin" / name for name in ("python", "envgen"))
    assert run(python, "-V", cwd=tmp_path, env=env).startswith(f"Python {version}.")
    first, second = run(program, "--version", cwd=tmp_path, env=env).splitlines()
    assert first.startswith("envgen ") and "click " in second
    run(program, "init", "project", cwd=tmp_path, env=env)
    project = tmp_path / "project"
    assert "mode: production" in run(program, "config", cwd=project, env=env)
    run(program, "render", cwd=project, env=env)
    run(program, "render", "--check", cwd=project, env=env)
    assert "--max-modl-len" in run(program, "explain", LOG, cwd=project, env=env, code=1)


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
