"""Builds an image with buildx: its command line, its output, and the step that failed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envgen import live
from envgen.engine import process
from envgen.engine.endpoint import find_endpoint, plugin_argv
from envgen.engine.values import ExecResult
from envgen.text import is_terminal, progress


@dataclass(frozen=True)
class BuildRequest:
    """Everything about one build. ``secrets``: files, or values, which buildx reads from the
    environment.
    """

    dockerfile: Path
    context: Path
    tags: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path | str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    target: str = ""
    platform: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    no_cache: bool = False

    def words(self) -> list[str]:
        """The arguments of ``buildx build``."""
        words = ["--load", "--provenance=false", f"--file={self.dockerfile}"]
        words += [f"--tag={tag}" for tag in self.tags]
        words += [f"--build-arg={name}={value}" for name, value in self.args.items()]
        words += [f"--build-arg={name}" for name in proxies()]
        words += [f"--label={name}={value}" for name, value in self.labels.items()]
        for name, value in self.secrets.items():
            source = f"env={name}"
            if isinstance(value, Path):  # in a field of CSV, since a path may have commas
                file = str(value).replace('"', '""')
                source = f'"src={file}"'
            words.append(f"--secret=id={name},{source}")
        words += [f"--build-context={name}={path}" for name, path in self.contexts.items()]
        if self.target:
            words.append(f"--target={self.target}")
        if self.platform:
            words.append(f"--platform={self.platform}")
        if self.no_cache:
            words.append("--no-cache")
        return [*words, str(self.context)]


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. ``step``: the one that failed. ``lines``: what its command wrote, else
    the notes.
    """

    code: int
    seconds: float
    notes: str = ""  # buildx's own lines
    step: str = ""
    exit_code: int | None = None
    lines: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0


def argv_of(*words: str) -> list[str]:
    """The command line of a subcommand, for the engine's own builder, which alone sees the engine's
    images.
    """
    return [*plugin_argv("buildx"), "--builder", "default", *words]


def build(
    request: BuildRequest,
    on_line: Callable[[str], None] = lambda _line: None,
    *,
    show: bool = False,
) -> BuildResult:
    """Build. ``on_line`` gets each line of BuildKit's output, for a log. EngineError: buildx itself
    did not run.

    ``show``: BuildKit's own display on our terminal, its lines elsewhere.
    """
    output = []
    before = _records() if show and is_terminal() else None

    def on_output(line: str) -> None:
        output.append(line)
        on_line(line)
        if show and before is None:
            progress(line)

    argv = argv_of("build", *request.words())
    started = time.monotonic()
    values = {name: value for name, value in request.secrets.items() if isinstance(value, str)}
    # Else buildx runs git in the project's folder, and git runs commands from that repository's
    # configuration.
    env = {**find_endpoint().environment, **values, "BUILDX_GIT_INFO": "false"}
    if before is None:
        done = process.run(
            [*argv, "--progress=plain"], env=env, timeout=None, check=False, on_line=on_output
        )
    else:
        with live.paused():
            done = process.on_terminal([*argv, "--progress=tty"], env)
        for line in _recorded(request.context, before):
            on_output(line)
    return result_of(output, done.code, time.monotonic() - started)


def _history(*words: str) -> ExecResult:
    return process.run(
        argv_of("history", *words), env=find_endpoint().environment, timeout=None, check=False
    )


def _records() -> list[str] | None:
    """BuildKit's records of builds, the newest first; None for an older BuildKit without records."""
    done = _history("ls", "--format={{.Ref}}")
    return None if done.code else done.stdout.decode().split()


def _recorded(context: Path, before: Sequence[str]) -> list[str]:
    """The output of our build of ``context``, which has ended: its display was no log. It began
    after ``before``.
    """
    new = [ref for ref in reversed(_records() or ()) if ref not in before]
    if not new:  # the engine ended, or buildx before it asked
        return ["BuildKit has no record of this build: its output was on the terminal alone"]
    # Others may have begun beside it. buildx prints the folder relative to the current one.
    folders = (
        (ref, _history("inspect", "--format={{.Context}}", ref).stdout.decode().strip())
        for ref in new
    )
    ours = next(
        (ref for ref, folder in folders if folder and Path(folder).resolve() == context.resolve()),
        new[0],
    )
    log = _history("logs", "--progress=plain", ours)
    # The log lacks an error that is of no step, such as a mistake in the Dockerfile.
    error = _history("inspect", "--format={{with .Error}}ERROR: {{.Message}}{{end}}", ours)
    return (log.stdout + log.stderr + error.stdout).decode(errors="replace").split("\n")


def proxies() -> tuple[str, ...]:
    """The proxy variables that are set: arguments that buildx reads itself, and BuildKit keeps out
    of the history.
    """
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    found = list[str]()
    for upper in names:
        found += filter(os.environ.get, (upper, upper.lower()))
    return tuple(found)


KEPT_LINES = 2000  # of the step that failed; compilers write their error long before they end
_FAILED = re.compile(r"^#(\d+) ERROR: (?!.*(?:context canceled|code = Canceled))(.*)", re.MULTILINE)
_FLAGS = re.compile(
    r"^((?:\[[^\]]*\] )?\w+ )(?:--(?:mount|network|security|chmod|chown|link)(?:=\S+)?\s+)+"
)


def result_of(output: Sequence[str], code: int, seconds: float) -> BuildResult:
    """The result of a build by its output, that of ``--progress=plain``."""
    text = "\n".join(output)
    without_steps = re.sub(r"^#\d+ .*\n?", "", text, flags=re.MULTILINE)
    notes = without_steps.strip()
    errors: dict[str, str] = dict(_FAILED.findall(text))
    if not errors:
        return BuildResult(code, seconds, notes, lines=notes.splitlines())
    # A killed one comes last: BuildKit kills the steps beside one that failed.
    step = min(errors, key=lambda step: "exit code: 137" in errors[step])
    ended = re.search(r"exit code: (\d+)", errors[step])
    exit_code = int(ended[1]) if ended else None
    names = re.findall(rf"^#{step} (.*)", text, re.MULTILINE)
    words = " ".join(names[0].split())
    title = _FLAGS.sub(r"\1", words, count=1)
    written = re.findall(rf"^#{step} \d+\.\d+ (.*)", text, re.MULTILINE)
    lines = []
    for line in written[-KEPT_LINES:]:
        *_, last_state = line.rstrip("\r").rsplit("\r", 1)  # a progress bar rewrites its line
        lines.append(last_state)
    if not lines:
        lines = notes.splitlines()
    return BuildResult(code, seconds, notes, title, exit_code, lines)
