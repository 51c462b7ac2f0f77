"""The completion script in a real bash, which asks a real envgen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASK = """\
eval "$(_ENVGEN_COMPLETE=bash_source envgen)"
complete -p envgen
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_envgen_completion envgen
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("sta",), ["status"]),
        (("cache", "cl"), ["clear"]),
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: list[str], tmp_path: Path) -> None:
    program = tmp_path / "bin" / "envgen"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envgen "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", "envgen", *words], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    setup, *found = done.stdout.splitlines()
    assert (found, done.stderr, done.returncode) == (offered, "", 0)
    assert setup == "complete -o nosort -F _envgen_completion envgen"


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
