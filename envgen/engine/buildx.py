"""Build an image with buildx: a request becomes an argv, what it prints becomes steps and a result."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine import process
from envgen.engine.endpoint import Endpoint, find_endpoint, plugin_argv
from envgen.engine.progress import Progress, Step
from envgen.errors import EngineError

# The engine's own builder, which alone sees the engine's images. It has this name since DOCKER_HOST names the engine.
OWN = "default"


@dataclass(frozen=True)
class Secret:
    """What a step may read without the image keeping it: a file, or a value that travels by environment."""

    id: str
    file: Path | None = None
    value: str = ""

    @property
    def variable(self) -> str:
        """The variable in which the value travels."""
        return f"ENVGEN_BUILD_SECRET_{re.sub(r'[^A-Za-z0-9]', '_', self.id).upper()}"


@dataclass(frozen=True)
class BuildRequest:
    """Everything about one build. ``pass_args``: build arguments whose value buildx takes from the environment."""

    dockerfile: Path
    context: Path
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    pass_args: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    contexts: Mapping[str, Path] = field(default_factory=dict)
    target: str = ""
    platform: str = ""
    no_cache: bool = False
    pull: bool = False
    push: bool = False  # to the registries of its tags, and not into the engine
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    builder: str = OWN

    def words(self) -> list[str]:
        """The arguments behind ``buildx build``."""
        output = "--push" if self.push else "--load"
        words = ["--progress=plain", output, "--provenance=false", f"--file={self.dockerfile}"]
        words += [f"--tag={tag}" for tag in self.tags]
        words += [f"--label={name}={value}" for name, value in self.labels.items()]
        words += [f"--build-arg={name}={value}" for name, value in self.args.items()]
        words += [f"--build-arg={name}" for name in self.pass_args]
        for secret in self.secrets:
            source = f"env={secret.variable}" if secret.file is None else f"src={secret.file}"
            words.append(f"--secret={_csv(f'id={secret.id}', source)}")
        words += [f"--build-context={name}={path}" for name, path in self.contexts.items()]
        words += [f"--target={self.target}"] if self.target else []
        words += [f"--platform={self.platform}"] if self.platform else []
        words += [f"--cache-from={source}" for source in self.cache_from]
        words += [f"--cache-to={target}" for target in self.cache_to]
        words += ["--no-cache"] if self.no_cache else []
        words += ["--pull"] if self.pull else []
        return [*words, str(self.context)]

    def environment(self) -> dict[str, str]:
        """The variables in which secret values travel."""
        return {secret.variable: secret.value for secret in self.secrets if secret.file is None}


@dataclass(frozen=True)
class BuildResult:
    """How a build ended. ``image_id`` is "" unless it succeeded; ``steps`` are those of the Dockerfile that began."""

    code: int
    image_id: str
    seconds: float
    steps: tuple[Step, ...]
    failed: Step | None = None
    error: str = ""  # buildx's own last words
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def cached(self) -> int:
        """How many steps came from the cache."""
        return sum(step.cached for step in self.steps)

    @property
    def last_lines(self) -> list[str]:
        """What the failing step wrote last, or what buildx itself said."""
        lines = list(self.failed.lines) if self.failed else []
        return lines or self.error.splitlines()


def argv_of(request: BuildRequest, environ: Mapping[str, str] | None = None) -> list[str]:
    """The whole command line of a build."""
    return [*plugin_argv("buildx", environ), "--builder", request.builder, "build", *request.words()]


def platforms(builder: str, endpoint: Endpoint | None = None) -> tuple[str, ...]:
    """What the builder can run, natively or by the emulators that its kernel has (binfmt_misc), as it says itself."""
    env = (endpoint or find_endpoint()).environment
    done = process.run([*plugin_argv("buildx"), "inspect", "--bootstrap", builder], env=env, timeout=120)
    lines = re.findall(r"^Platforms:(.*)$", done.stdout.decode(errors="replace"), re.M)
    return tuple(dict.fromkeys(word.strip(" *") for line in lines for word in line.split(",") if word.strip()))


def build(
    request: BuildRequest,
    *,
    on_line: Callable[[str], None] = lambda _line: None,
    on_step: Callable[[Step], None] = lambda _step: None,
    on_tick: Callable[[], None] | None = None,
    endpoint: Endpoint | None = None,
) -> BuildResult:
    """Build. ``on_line`` gets each line of buildx, ``on_step`` each step that has begun, written something or ended.

    A step that fails is in the result; EngineError means that buildx itself could not be run.
    """
    endpoint = endpoint or find_endpoint()
    progress = Progress()
    started = time.monotonic()

    def take(_channel: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        on_line(text)
        if step := progress.feed(text):
            on_step(step)

    with files.Scratch("build") as folder:
        metadata = Path(folder) / "metadata.json"
        *words, context = argv_of(request)
        env = {
            **endpoint.environment,
            **request.environment(),
            "BUILDX_METADATA_PROVENANCE": "disabled",
            # Else buildx runs git in the project's folder, and git obeys the commands in that repository's config.
            "BUILDX_GIT_INFO": "false",
        }
        done = process.stream([*words, f"--metadata-file={metadata}", context], take, env=env, on_tick=on_tick)
        image_id = _image_id(metadata) if done.code == 0 else ""
    if done.code == 0 and not image_id:
        raise EngineError("buildx ended without naming the image that it built")
    return BuildResult(
        code=done.code,
        image_id=image_id,
        seconds=time.monotonic() - started,
        steps=progress.steps,
        failed=progress.failed,
        error="\n".join(progress.notes).strip() if done.code else "",
        warnings=progress.warnings,
    )


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
    """One record of comma-separated values, as Go's reader takes it: a comma or quote in a path stays in it."""
    return ",".join('"' + f.replace('"', '""') + '"' if re.search(r'[,"\n]', f) else f for f in fields)


def proxy_arguments(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The proxy variables that are set here; BuildKit keeps these names out of the image's history by itself."""
    environ = os.environ if environ is None else environ
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    return tuple(name for upper in names for name in (upper, upper.lower()) if environ.get(name))
