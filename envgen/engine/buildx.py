"""Builds an image with buildx: its command line, the step that failed, and the result."""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envgen import live
from envgen.engine import process
from envgen.engine.endpoint import find_endpoint, plugin_argv
from envgen.text import is_terminal
from envgen.text import progress as say


@dataclass(frozen=True)
class BuildRequest:
    """Everything about one build. ``secrets``: files, or values, which buildx reads from the environment."""

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
            source = f"src={value}" if isinstance(value, Path) else f"env={_variable(name)}"
            words.append(f"--secret={_csv(f'id={name}', source)}")
        words += [f"--build-context={name}={path}" for name, path in self.contexts.items()]
        words += [f"--target={self.target}"] if self.target else []
        words += [f"--platform={self.platform}"] if self.platform else []
        words += ["--no-cache"] if self.no_cache else []
        return [*words, str(self.context)]

    def environment(self) -> dict[str, str]:
        """The variables with the values of secrets."""
        return {_variable(name): value for name, value in self.secrets.items() if isinstance(value, str)}


def _variable(secret: str) -> str:
    return f"ENVGEN_BUILD_SECRET_{secret.upper()}"


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. ``error``: buildx's own last lines, where it failed."""

    code: int
    seconds: float
    failed: BuildStep | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the failing step, or buildx's own error."""
        lines = list(self.failed.lines) if self.failed else []
        return lines or self.error.splitlines()


def argv_of(*words: str) -> list[str]:
    """The command line of a subcommand, for the engine's own builder, which alone sees the engine's images."""
    return [*plugin_argv("buildx"), "--builder", "default", *words]


def build(
    request: BuildRequest, on_line: Callable[[str], None] = lambda _line: None, *, show: bool = False
) -> BuildResult:
    """Build. ``on_line`` gets each line of BuildKit's output, for a log. EngineError: buildx itself did not run.

    ``show``: BuildKit's own display on our terminal, its lines elsewhere.
    """
    output = BuildOutput()
    started = time.monotonic()
    before = _builds() if show and is_terminal() else None

    def on_output(_channel: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        on_line(text)
        output.feed(text)
        if show and before is None:
            say(text)

    *words, context = argv_of("build", *request.words())
    # Else buildx runs git in the project's folder, and git runs commands from that repository's configuration.
    env = {**find_endpoint().environment, **request.environment(), "BUILDX_GIT_INFO": "false"}
    if before is None:
        argv = [*words, "--progress=plain", context]
        done = process.run(argv, env=env, timeout=None, check=False, on_line=on_output)
    else:
        with live.paused():
            done = process.on_terminal([*words, "--progress=tty", context], env=env)
        _recorded(request, before, on_output)
    error = "\n".join(output.notes).strip() if done.code else ""
    return BuildResult(done.code, time.monotonic() - started, output.failed, error)


def _builds() -> dict[str, str] | None:
    """The name of each build that BuildKit has a record of, by its ID; None for an older BuildKit without records."""
    done = process.run(argv_of("history", "ls", "--format=json"), env=find_endpoint().environment, check=False)
    try:
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return None if done.code else {row["ref"].rpartition("/")[2]: row["name"] for row in rows}
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _recorded(request: BuildRequest, before: Mapping[str, str], on_output: Callable[[str, bytes], None]) -> None:
    """Hand over the output of the build that has ended: its display on the terminal was no log."""
    builds = {ref: name for ref, name in (_builds() or {}).items() if ref not in before}
    own = [ref for ref, name in builds.items() if name == request.context.name] or [*builds]
    if own:
        argv = argv_of("history", "logs", "--progress=plain", own[0])
        process.run(argv, env=find_endpoint().environment, timeout=None, check=False, on_line=on_output)


def _csv(*fields: str) -> str:
    """One record of comma-separated values, as Go parses it; fields may have commas and quotes."""
    return ",".join('"' + f.replace('"', '""') + '"' if re.search(r'[,"\n]', f) else f for f in fields)


def proxies() -> tuple[str, ...]:
    """The proxy variables that are set: arguments that buildx reads itself, and BuildKit keeps out of the history."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    return tuple(name for upper in names for name in (upper, upper.lower()) if os.environ.get(name))


# The output of ``buildx build --progress=plain``.

# Of a step's output; compilers write their error long before they end.
KEPT_LINES = 2000
_OF_STEP = re.compile(r"#(\d{1,6}) (?:\d+\.\d+ (?P<written>.*)|ERROR: (?P<error>.*)|.*)", re.DOTALL)
_CANCELLED = re.compile(r"context canceled|code = Canceled")  # beside the one that failed
_FLAGS = re.compile(r"^((?:\[[^\]]*\] )?\w+ )(?:--(?:mount|network|security|chmod|chown|link)(?:=\S+)?\s+)+")


@dataclass(frozen=True)
class BuildStep:
    """The step that failed: an instruction of the Dockerfile, or a step of BuildKit's own."""

    name: str
    error: str
    lines: Sequence[str] = ()

    @property
    def title(self) -> str:
        """BuildKit's name for it in one line, without the flags of mounts."""
        return _FLAGS.sub(r"\1", " ".join(self.name.split()), count=1)

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command, if any."""
        match = re.search(r"exit code: (\d+)", self.error)
        return int(match[1]) if match else None


class BuildOutput:
    """What a build prints, line by line, whatever it is; ``notes`` are buildx's own lines."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._names: dict[str, str] = {}
        self._lines: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self._errors: dict[str, str] = {}

    @property
    def failed(self) -> BuildStep | None:
        """The step that failed. A killed one comes last: BuildKit kills the steps beside one that failed."""
        failed = [BuildStep(self._names[at], error, self._lines[at]) for at, error in self._errors.items()]
        return min(failed, key=lambda step: step.exit_code == 137, default=None)

    def feed(self, line: str) -> None:
        """Parse one line."""
        match = _OF_STEP.fullmatch(line)
        if not match:
            self.notes.append(line)
        elif (number := match[1]) not in self._names:
            self._names[number] = line.partition(" ")[2]
        elif match["written"] is not None:  # a progress bar rewrites its line: keep its last state
            self._lines[number].append(match["written"].rstrip("\r").rsplit("\r", 1)[-1])
        elif match["error"] is not None and not _CANCELLED.search(match["error"]):
            self._errors[number] = match["error"]
