"""A line that is completed in a real bash, fish or zsh, which asks a real envgen."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

BASH = """\
eval "$(_ENVGEN_COMPLETE=bash_source envgen)"
[ "$(complete -p envgen)" = "complete -o nosort -F _envgen_completion envgen" ] || exit 1
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_envgen_completion envgen
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "_ENVGEN_COMPLETE=fish_source envgen | source\ncomplete -C (string join -- ' ' $argv)\n"
# What Tab leaves in the line of an interactive zsh, written where it is read.
ZSH = """\
autoload -Uz compinit; compinit -u -D
eval "$(_ENVGEN_COMPLETE=zsh_source envgen)"
keep() { print -r -- "$BUFFER" > "$KEPT"; exit 0 }
zle -N keep; bindkey '^X' keep
"""
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"))
    for name in ("bash", "fish", "zsh")
]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """A shell's variables, with this envgen as the only one."""
    program = folder / "bin" / "envgen"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envgen "$@"\n')
    program.chmod(0o755)
    paths = f"{program.parent}:/usr/bin:/bin"
    return {"PATH": paths, "HOME": str(folder), "TERM": "dumb", "ZDOTDIR": str(folder), **more}


def completed(shell: str, line: str, folder: Path, env: Mapping[str, str]) -> str:
    """The last word of ``line`` after Tab, in ``folder``."""
    if shell == "zsh":
        return _typed(line, folder, env).split()[-1]
    words = {"bash": ["bash", "--norc", "-c", BASH, "bash"], "fish": ["fish", "--no-config", "-c", FISH, "--"]}
    command = [*words[shell], *line.split()]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = done.stdout.splitlines()
    return found.partition("\t")[0]


def _typed(line: str, folder: Path, env: Mapping[str, str]) -> str:
    (Path(env["HOME"]) / ".zshrc").write_text(ZSH)
    kept = Path(env["HOME"]) / "kept"
    own, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "--no-globalrcs", "-i"],
        cwd=folder, env={**env, "KEPT": str(kept)}, stdin=theirs, stdout=theirs, stderr=theirs,
    ) as shell:  # fmt: skip
        os.close(theirs)
        os.write(own, f"{line}\t\x18".encode())
        try:
            while os.read(own, 4096):
                pass
        except OSError:  # the terminal ends with its shell
            pass
        os.close(own)
        shell.wait(240)
    return kept.read_text()
