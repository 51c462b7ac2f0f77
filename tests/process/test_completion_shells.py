"""The completion scripts in a real bash, zsh and fish, which ask a real envgen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shells import SHELLS, completed, environment

FILE = (
    "version: 1\nname: t\nprofiles:\n  live:\n    mode: production\n    base: {image: debian:12}\n    gpu: none\n"
    "    services: {serve: {command: [sleep, '1']}}\n    variants: {quick: {env: {A: '1'}}}\n"
)
LINES = [
    ("envgen exec se", "serve"),
    ("envgen up -p li", "live"),
    ("envgen up --variant qu", "quick"),
    ("envgen recipe add gpt-oss-1", "gpt-oss-120b"),
    ("envgen sta", "status"),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_names_of_the_project(shell: str, tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE)
    env = environment(tmp_path)
    found = [completed(shell, line, tmp_path, env) for line, _ in LINES]
    assert found == [name for _, name in LINES]


def test_nothing_of_a_folder_is_run_or_printed(tmp_path: Path) -> None:
    """Also where the file is broken, and where a folder offers modules of the names that are imported."""
    (tmp_path / "envgen.yaml").write_text("version: [")
    for name in ("yaml", "click", "docker", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w').close()\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("envgen"))], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "_ENVGEN_COMPLETE": "bash_complete",
             "COMP_WORDS": "envgen up ", "COMP_CWORD": "2"},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("", "") and not (tmp_path / "was-run").exists()
