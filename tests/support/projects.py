"""What the engine tests share: a project in a folder, envgen as a process, plain docker."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked

BASE = os.environ.get("ENVGEN_TEST_BASE", "nvcr.io/nvidia/pytorch:25.12-py3")

# Before the text of each project that ``make_project`` makes, which may go on with keys of the defaults.
DEFAULTS = f"""\
defaults:
  base: {{image: {BASE}}}
  cuda: {{arch_list: 12.1a}}
  gpu: none
  build: {{ccache: false}}
"""

# The stand-in base without torch and compilers: saving or pushing all of it would take a minute.
LEAN = f"""\
FROM {BASE} AS full
RUN echo SALT >/etc/salt
RUN mkdir -p /lean/dev /lean/proc /lean/sys /lean/run && tar -C / --one-file-system --exclude=lean \\
    --exclude=usr/local/lib \\
    --exclude=usr/lib/gcc --exclude='usr/bin/x86_64-linux-gnu-*' --exclude=usr/include --exclude='*.a' -cf - \\
    bin etc lib lib64 sbin usr var root tmp | tar -C /lean -xf -
FROM scratch
COPY --from=full /lean /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""


def lean_base(name: str) -> str:
    """The stand-in base without torch and compilers, as NAME; the engine's build cache has it after the first time."""
    docker("build", "-q", "-t", name, "-", stdin=LEAN, timeout=300)
    return name


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"nothing on standard output, exit code {self.code}:\n{self.err[-4000:]}"
        return json.loads(self.out)


@dataclass(frozen=True)
class Project:
    """A folder with an envgen.yaml; commands run in it, each in a process (see forked.py)."""

    root: Path
    name: str

    def words(self, *words: str) -> tuple[str, ...]:
        """Projects of these tests mostly have no lock, without which a production profile is not built by itself."""
        unlocked = words[:1] == ("build",) and "--unlocked" not in words and not (self.root / "envgen.lock").exists()
        return (*words, "--unlocked") if unlocked else words

    def on_a_terminal(self, answer: bytes, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """(exit code, what a terminal showed) of a command whose question gets this answer."""
        ours, theirs = pty.openpty()
        argv, shell = [sys.executable, "-m", "envgen", *words], {**os.environ, **(env or {})}
        child = subprocess.Popen(argv, cwd=self.root, env=shell, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, answer)  # the terminal keeps it until it is asked for
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        return child.wait(60), shown.decode()

    def envgen(self, *words: str, code: int | None = 0, env: dict[str, str] | None = None) -> Finished:
        """Run a command; ``code``: the exit code that it must have (None: any). Never a traceback.

        The limit of ``forked.run`` is for what hangs: the build of a real vLLM takes ten minutes on a busy machine.
        """
        done = forked.run(self.words(*words), self.root, {**os.environ, **(env or {})})
        found = Finished(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return found

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command that the test will interrupt, in an interpreter of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "envgen", *self.words(*words)],
            cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            start_new_session=True, env={**os.environ, **(env or {})},
        )  # fmt: skip


def interrupt(child: subprocess.Popen[str], timeout: float = 30) -> Finished:
    """Ctrl-C, then the end."""
    child.send_signal(signal.SIGINT)
    try:
        out, err = child.communicate(timeout=timeout)
    finally:
        child.kill()
    return Finished(child.returncode, out, err)


def forget(name: str) -> None:
    """Remove what a run that was killed left under a test's fixed name: from another folder it would be refused."""
    for container in docker("ps", "-a", "--filter", f"name={name}-", "--format", "{{.Names}}").split():
        if container.startswith(f"{name}-"):
            docker("rm", "-f", container, check=False)
    for volume in docker("volume", "ls", "-q", "--filter", f"name={name}-").split():
        if volume.startswith(f"{name}-") and "-env-" in volume:
            docker("volume", "rm", volume, check=False)


def inner_pid(pid: int) -> int:
    """The number that a process of this machine has in its container."""
    numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0]
    return int(numbers.split()[-1])


def run_again(log: str) -> list[str]:
    """The RUN steps of a build's log that did not come from the cache."""
    steps: dict[str, list[str]] = {}
    for number, text in re.findall(r"^#(\d+) (.*)$", log, re.MULTILINE):
        steps.setdefault(number, []).append(text)
    return [name for name, *more in steps.values() if " RUN " in name and "CACHED" not in more]


def ran(
    *words: str, check: bool = True, timeout: float = 600, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Plain docker, as a second opinion: all that it printed."""
    done = subprocess.run(
        ["docker", *words], capture_output=True, text=True, timeout=timeout, input=stdin, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"docker {words[:6]}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def docker(*words: str, check: bool = True, timeout: float = 600, stdin: str = "") -> str:
    """What plain docker printed on its standard output."""
    return ran(*words, check=check, timeout=timeout, stdin=stdin).stdout.strip()
