"""Builds an image with buildx: its command line, its output as steps, and the result."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from envgen import files, live
from envgen.engine import process
from envgen.engine.endpoint import find_endpoint, plugin_argv
from envgen.errors import EngineError
from envgen.text import is_terminal
from envgen.text import progress as say

# The engine's own builder, which alone sees the engine's images; its name where DOCKER_HOST is set.
OWN = "default"


@dataclass(frozen=True)
class Options:
    """The options of a build. ``max_jobs``: compilers at once; None: the profile's, else the gate decides."""

    max_jobs: int | None = None
    no_cache: bool = False
    pull: bool = False
    builder: str = OWN

    @property
    def plain(self) -> bool:
        """Whether an image that is up to date needs no build."""
        return not (self.no_cache or self.pull)


@dataclass(frozen=True)
class BuildRequest:
    """Everything about one build. ``pass_args``: build arguments that buildx reads from the environment.

    ``secrets``: files, or values, which buildx reads from the environment.
    """

    dockerfile: Path
    context: Path
    options: Options = Options()
    tags: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)
    pass_args: tuple[str, ...] = ()
    secrets: Mapping[str, Path | str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    target: str = ""
    platform: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """The arguments of ``buildx build``."""
        options = self.options
        words = ["--load", "--provenance=false", f"--file={self.dockerfile}"]
        words += [f"--tag={tag}" for tag in self.tags]
        words += [f"--build-arg={name}={value}" for name, value in self.args.items()]
        words += [f"--build-arg={name}" for name in self.pass_args]
        words += [f"--label={name}={value}" for name, value in self.labels.items()]
        for name, value in self.secrets.items():
            source = f"src={value}" if isinstance(value, Path) else f"env={_variable(name)}"
            words.append(f"--secret={_csv(f'id={name}', source)}")
        words += [f"--build-context={name}={path}" for name, path in self.contexts.items()]
        words += [f"--target={self.target}"] if self.target else []
        words += [f"--platform={self.platform}"] if self.platform else []
        words += ["--no-cache"] if options.no_cache else []
        words += ["--pull"] if options.pull else []
        return [*words, str(self.context)]

    def environment(self) -> dict[str, str]:
        """The variables with the values of secrets."""
        return {_variable(name): value for name, value in self.secrets.items() if isinstance(value, str)}


def _variable(secret: str) -> str:
    return f"ENVGEN_BUILD_SECRET_{secret.upper()}"


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. ``image_id``: "" where it failed; ``steps``: those of the Dockerfile that began."""

    code: int
    image_id: str
    seconds: float
    steps: tuple[BuildStep, ...]
    failed: BuildStep | None = None
    error: str = ""  # buildx's last lines

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def cached(self) -> int:
        """The number of steps from the cache."""
        return sum(step.cached for step in self.steps)

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the failing step, or buildx's own error."""
        lines = list(self.failed.lines) if self.failed else []
        return lines or self.error.splitlines()


def argv_of(request: BuildRequest) -> list[str]:
    """The whole command line of a build."""
    return [*plugin_argv("buildx"), "--builder", request.options.builder, "build", *request.words()]


def build(
    request: BuildRequest, on_line: Callable[[str], None] = lambda _line: None, *, show: bool = False
) -> BuildResult:
    """Build. ``on_line`` gets each line of BuildKit's output, for a log. EngineError: buildx itself did not run.

    ``show``: BuildKit's own display on our terminal, its lines elsewhere.
    """
    progress = BuildProgress()
    started = time.monotonic()
    before = _builds(request) if show and is_terminal() else None

    def on_output(_channel: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        on_line(text)
        progress.feed(text)
        if show and before is None:
            say(text)

    with files.Scratch("build") as folder:
        metadata = Path(folder) / "metadata.json"
        *words, context = argv_of(request)
        env = {
            **find_endpoint().environment,
            **request.environment(),
            "BUILDX_METADATA_PROVENANCE": "disabled",
            # Else buildx runs git in the project's folder, and git runs commands from that repository's configuration.
            "BUILDX_GIT_INFO": "false",
        }
        words.append(f"--metadata-file={metadata}")
        if before is None:
            done = process.stream([*words, "--progress=plain", context], on_output, env=env)
        else:
            with live.paused():
                done = process.on_terminal([*words, "--progress=tty", context], env=env)
            _recorded(request, before, on_output)
        image_id = _image_id(metadata) if done.code == 0 else ""
    if done.code == 0 and not image_id:
        raise EngineError("buildx ended without the ID of the image")
    return BuildResult(
        code=done.code,
        image_id=image_id,
        seconds=time.monotonic() - started,
        steps=progress.steps,
        failed=progress.failed,
        error="\n".join(progress.notes).strip() if done.code else "",
    )


def _builds(request: BuildRequest) -> dict[str, str] | None:
    """The name of each build that BuildKit has a record of, by its ID; None for an older BuildKit without records."""
    done = process.run(_history(request, "ls", "--format=json"), env=find_endpoint().environment, check=False)
    try:
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return None if done.code else {row["ref"].rpartition("/")[2]: row["name"] for row in rows}
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _recorded(request: BuildRequest, before: Mapping[str, str], on_output: Callable[[str, bytes], None]) -> None:
    """Hand over the output of the build that has ended: its display on the terminal was no log."""
    builds = {ref: name for ref, name in (_builds(request) or {}).items() if ref not in before}
    own = [ref for ref, name in builds.items() if name == request.context.name] or [*builds]
    if own:
        argv = _history(request, "logs", "--progress=plain", own[0])
        process.stream(argv, on_output, env=find_endpoint().environment)


def _history(request: BuildRequest, *words: str) -> list[str]:
    return [*plugin_argv("buildx"), "--builder", request.options.builder, "history", *words]


def _image_id(metadata: Path) -> str:
    try:
        document: Any = json.loads(metadata.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(document, dict):
        return ""
    # With the containerd image store the image's id is its manifest's digest, else its config's.
    return str(document.get("containerimage.digest") or document.get("containerimage.config.digest") or "")


def _csv(*fields: str) -> str:
    """One record of comma-separated values, as Go parses it; fields may have commas and quotes."""
    return ",".join('"' + f.replace('"', '""') + '"' if re.search(r'[,"\n]', f) else f for f in fields)


def proxy_arguments() -> tuple[str, ...]:
    """The proxy variables that are set; BuildKit keeps them out of the image's history."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    return tuple(name for upper in names for name in (upper, upper.lower()) if os.environ.get(name))


# Parses the output of ``buildx build --progress=plain``. Never fails on unexpected lines.

# Of a step's output; compilers write their error long before they end.
KEPT_LINES = 2000
_OF_STEP = re.compile(r"#(\d{1,6}) (.*)", re.DOTALL)
_WRITTEN = re.compile(r"\d+\.\d+ (.*)", re.DOTALL)  # the output of its command has a time in front
_ENDED = re.compile(r"(CACHED|CANCELED|DONE (\d+\.\d+)s|ERROR: (.*))", re.DOTALL)
_INSTRUCTION = re.compile(r"\[(?:[^\]]* )?\d+/\d+\] ")
_FLAGS = re.compile(r"^((?:\[[^\]]*\] )?\w+ )(?:--(?:mount|network|security|chmod|chown|link)(?:=\S+)?\s+)+")


@dataclass
class BuildStep:
    """An instruction of the Dockerfile, or a step of BuildKit's own (``internal``)."""

    name: str
    seconds: float = 0.0
    cached: bool = False
    error: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def internal(self) -> bool:
        return not _INSTRUCTION.match(self.name)

    @property
    def title(self) -> str:
        """BuildKit's name for it in one line, without the flags of mounts."""
        return _FLAGS.sub(r"\1", " ".join(self.name.split()), count=1)

    @property
    def failed(self) -> bool:
        """True for the step that failed, not for those that were cancelled then."""
        return bool(self.error) and not re.search(r"context canceled|code = Canceled", self.error)

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command, if any."""
        match = re.search(r"exit code: (\d+)", self.error)
        return int(match[1]) if match else None


class BuildProgress:
    """All steps of one build that have begun; ``notes`` are buildx's own lines."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._steps: dict[str, BuildStep] = {}

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        """The steps of the Dockerfile."""
        return tuple(step for step in self._steps.values() if not step.internal)

    @property
    def failed(self) -> BuildStep | None:
        """The step that failed. A killed one comes last: BuildKit kills the steps beside one that failed."""
        failed = [step for step in self._steps.values() if step.failed]
        return min(failed, key=lambda step: step.exit_code == 137, default=None)

    def feed(self, line: str) -> None:
        """Parse one line of buildx's output."""
        match = _OF_STEP.fullmatch(line)
        if not match:
            self.notes.append(line)
            return
        number, text = match.groups()
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = BuildStep(text)
        elif ended := _ENDED.fullmatch(text):
            step.cached = text == "CACHED"
            step.seconds = float(ended[2] or 0)
            step.error = "context canceled" if text == "CANCELED" else ended[3] or ""
        elif written := _WRITTEN.fullmatch(text):
            # A progress bar rewrites its line: keep its last state.
            step.lines.append(written[1].rstrip("\r").rsplit("\r", 1)[-1])


class BuildLog:
    """The log file of one build, with all output of buildx, written line by line."""

    def __init__(self, folder: Path, name: str) -> None:
        # Two builds may start in one second.
        self.path = folder / f"build-{name}-{datetime.now():%Y%m%dT%H%M%S.%f}.log"
        self._file = files.create(self.path, within=folder.parents[1])

    def __enter__(self) -> BuildLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            cancelled = issubclass(kind, KeyboardInterrupt)
            self.say("cancelled" if cancelled else f"ended by {kind.__name__}: {error}")
        self._file.close()

    def say(self, text: str) -> None:
        """Write a line."""
        self._file.write(f"{text}\n")
        self._file.flush()
