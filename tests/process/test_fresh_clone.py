"""The README's own way: a fresh clone, `pip install .`, and the committed files are what this envgen renders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def run(*argv: str | Path, cwd: Path) -> str:
    env = {**os.environ, "UV_NATIVE_TLS": "true", "UV_SYSTEM_CERTS": "true"}
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_a_clone_with_an_installed_wheel_is_up_to_date(tmp_path: Path) -> None:
    clone, venv, uv = tmp_path / "envgen", tmp_path / "venv", (sys.executable, "-m", "uv")
    run("git", "clone", "-q", "--no-hardlinks", CHECKOUT, clone, cwd=tmp_path)
    run(*uv, "venv", "-q", "--python", sys.executable, venv, cwd=tmp_path)
    run(*uv, "pip", "install", "-q", "--python", venv / "bin/python", clone, cwd=tmp_path)
    envgen = venv / "bin/envgen"
    assert "up to date" in run(envgen, "render", "--check", cwd=clone)
    assert "up to date" in run(envgen, "render", cwd=clone)
    assert run("git", "status", "--porcelain", cwd=clone) == ""


def test_what_tools_leave_beside_the_programs_is_in_no_image(tmp_path: Path) -> None:
    """Bytecode, and an editor's copy: a second run in the same clone renders the same."""
    clone = tmp_path / "envgen"
    run("git", "clone", "-q", "--no-hardlinks", CHECKOUT, clone, cwd=tmp_path)
    cache = clone / "docker/runtime/libexec/__pycache__"
    cache.mkdir()
    (cache / "memory-guardcpython-311.pyc").write_bytes(b"\xa7\r\r\n\0")
    (clone / "docker/build/fetch~").write_text("# Written by `envgen render`\n")
    listed = "from envgen.render.outputs import scripts; print(*scripts(), sep='\\n')"
    found = run(sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(clone)!r}); {listed}", cwd=tmp_path)
    tracked = run("git", "ls-files", "docker/build", "docker/runtime", cwd=clone)
    assert found.split() == sorted(tracked.split())
