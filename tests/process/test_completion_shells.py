"""The completion scripts in a real bash, zsh and fish, which ask a real envgen."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
BASH = """\
eval "$(_ENVGEN_COMPLETE=bash_source envgen)"
complete -p envgen
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_envgen_completion envgen
printf '%s\\n' "${COMPREPLY[@]}"
"""
# What Tab leaves in the line of an interactive zsh, written where the test reads it.
ZSH = """\
autoload -Uz compinit; compinit -u -D
eval "$(_ENVGEN_COMPLETE=zsh_source envgen)"
keep() { print -r -- "$BUFFER" > "$KEPT"; exit 0 }
zle -N keep; bindkey '^X' keep
"""


def environment(folder: Path) -> dict[str, str]:
    program = folder / "bin" / "envgen"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envgen "$@"\n')
    program.chmod(0o755)
    (folder / "envgen.yaml").write_text(FILE)
    paths = f"{program.parent}:/usr/bin:/bin"
    return {"PATH": paths, "HOME": str(folder), "TERM": "dumb", "ZDOTDIR": str(folder), "KEPT": str(folder / "kept")}


@pytest.mark.parametrize(("line", "name"), LINES)
def test_bash_completes(line: str, name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *line.split()],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    setup = "complete -o nosort -F _envgen_completion envgen"
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == ([setup, name], "", 0)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    asked = "".join(f"complete -C '{line}'\n" for line, _ in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"_ENVGEN_COMPLETE=fish_source envgen | source\n{asked}"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [name for _, name in LINES]
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize(("line", "name"), LINES)
def test_zsh_completes(line: str, name: str, tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / ".zshrc").write_text(ZSH)
    own, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "--no-globalrcs", "-i"], cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as shell:
        os.close(theirs)
        os.write(own, f"{line}\t\x18".encode())
        try:
            while os.read(own, 4096):
                pass
        except OSError:  # the terminal ends with its shell
            pass
        os.close(own)
        shell.wait(240)
    assert (tmp_path / "kept").read_text().split() == [*line.split()[:-1], name]


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
