"""Compile modules ahead of their use, in a service or a temporary container."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from envgen.binding import JsonDict
from envgen.engine.owner import run_as
from envgen.engine.values import KILLED, MISSHAPEN, read_json
from envgen.errors import EngineError, NotFoundError
from envgen.inside.jit.shapes import RecordedBaseline
from envgen.inside.run import program_text
from envgen.inside.warm import MARK
from envgen.jitcache.place import AgentHost, Query, arch_folders, temporary_host
from envgen.jitcache.service import JitCache
from envgen.jitcache.space import create_mount
from envgen.render.environment import service_env, user_env, with_start_up

_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_OUTPUT = re.compile(r" -o (\S+)")
_ERROR = re.compile(
    r"\b(fatal error|error)( #?\w+)?:|: error\b|^(nvcc|ptxas|cicc) fatal|undefined reference|cannot find -l"
)

# (command, function for each line of output, variables) -> exit code
RunLines = Callable[[Sequence[str], Callable[[str], None], Mapping[str, str]], int]
HOURS = 24 * 3600.0


@dataclass
class Built:
    """A module's result. ``outcome``: done, fresh (there was nothing to compile), masked, unknown
    (it can't be compiled by name) or failed.
    """

    name: str
    outcome: str = "failed"
    seconds: float = 0.0
    error: str = ""
    lines: list[str] = field(default_factory=list, repr=False)


def first_error(lines: Sequence[str]) -> str:
    """The compiler's first error with the two lines after it."""
    for number, line in enumerate(lines):
        if _ERROR.search(line) and not _STEP.match(line):
            return "\n".join(lines[number : number + 3])
    return ""


@dataclass(eq=False)
class Warm:
    """Runs the builder and reads its output. ``run_lines`` runs a command in the container;
    ``show`` gets progress; ``hint``: what to do where FlashInfer is missing.
    """

    run_lines: RunLines
    python: str
    where: str
    show: Callable[[str], None]
    hint: str = ""
    built: dict[str, Built] = field(default_factory=dict)
    version: str = ""
    _now: Built | None = None
    _since: float = 0.0
    _tail: list[str] = field(default_factory=list)

    def run(self, names: Sequence[str], jobs: int | None) -> None:
        """Build modules, with MAX_JOBS if ``jobs`` is given."""
        self._tail = []
        # As `python -P` (3.11): with -c, sys.path begins with "", which would make /flashinfer a
        # package.
        start = "import sys; sys.path[:] = [p for p in sys.path if p]; "
        command = [
            self.python,
            "-c",
            start + f"exec(compile({program_text('warm')!r}, 'envgen-warm', 'exec'))",
            *names,
        ]
        code = self.run_lines(
            with_start_up(command), self._line, {} if jobs is None else {"MAX_JOBS": str(jobs)}
        )
        if code == KILLED:
            raise EngineError(
                f"what compiles in {self.where} was killed (SIGKILL): is its memory full?"
            )
        if not self.built and code:
            reason = next(
                (line for line in reversed(self._tail) if line.strip()), f"exit code {code}"
            )
            raise NotFoundError(
                f"{self.where} has no FlashInfer that can be imported: {reason}", hint=self.hint
            )

    def _line(self, line: str) -> None:
        if line.startswith(MARK):
            try:
                self._event(read_json(line[len(MARK) :]))
            except MISSHAPEN:
                self._tail.append(line)
            return
        if line.startswith("compilers: "):  # compile-gate's own report
            self.show(line)
            return
        self._tail = [*self._tail[-50:], line]
        if self._now is None:
            return
        self._now.lines.append(line)
        step = _STEP.match(line)
        if step:
            output = _OUTPUT.search(step[3])
            what = output[1].rpartition("/")[2] if output else "linked"
            self.show(
                f"{self._now.name}: {step[1]}/{step[2]} {what} {time.monotonic() - self._since:.0f}s"
            )

    def _event(self, event: JsonDict) -> None:
        kind = event["event"]
        module = event.get("module", "")
        if not isinstance(kind, str) or not isinstance(module, str):
            raise TypeError("not an event")
        if kind == "import":
            self.version = str(event["version"])
            return
        if kind == "start":
            self._now = self.built[module] = Built(module)
            self._since = time.monotonic()
            return
        built = self.built[module]
        # ninja prints a line for each step of a build.
        built.outcome = (
            "fresh" if kind == "done" and not any(map(_STEP.match, built.lines)) else kind
        )
        built.seconds = round(time.monotonic() - self._since, 2)
        self._now = None
        if kind == "failed":
            output = [*built.lines, *str(event.get("message", "")).splitlines()]
            built.error = first_error(output) or "\n".join(output[-3:])


def _in(cache: JitCache, place: AgentHost, show: Callable[[str], None]) -> Warm:
    profile = cache.deployment.profile
    if any(source.package == "flashinfer" for source in profile.sources.values()):
        hint = f"`{profile.hint('doctor')}` says why, and what to type"
    else:
        hint = (
            f"add flashinfer to `sources` of profile {profile.name}, then: {profile.hint('build')}"
        )
    return Warm(_runner(cache, place), profile.base.python, place.shown, show, hint)


def warm(
    cache: JitCache, names: Sequence[str], jobs: int | None, show: Callable[[str], None]
) -> tuple[list[Built], RecordedBaseline | None]:
    """Build ``names`` (none: partial and stale modules) and record their baselines.

    Proven stale modules are cleared first: FlashInfer would consider them up to date.
    """
    place = find_compile_host(cache)
    archs = arch_folders(cache.deployment.profile.cuda.arch_list)
    # Not a query with the names: some may not exist yet.
    modules = [
        module
        for module in cache.inventory(Query(archs=archs)).modules
        if not names or module.name in names
    ]
    stale = sorted(
        {module.name for module in modules if module.state == "stale" and not module.guess}
    )
    wanted = list(names) or sorted(
        {module.name for module in modules if module.state == "partial"} | set(stale)
    )
    if not wanted:
        return [], None
    if stale:
        show(f"clearing stale modules: {', '.join(stale)}")
        cache.clear(Query(tuple(stale), archs=archs), stale=True)
    since = time.time_ns()
    show(f"compiling in {place.shown}")
    run = _in(cache, place, show)
    run.run(wanted, jobs)
    results = list(run.built.values())
    done = tuple(built.name for built in results if built.outcome in ("done", "fresh"))
    if not done:
        return results, None
    return results, cache.baseline(Query(done, run.version, archs), since=since)


def compile_for(
    cache: JitCache, names: Sequence[str], jobs: int | None, show: Callable[[str], None]
) -> list[Built]:
    """Build ``names`` for an image that no container has yet, in a temporary one of it."""
    mount = create_mount(cache)
    run = _in(cache, temporary_host(cache.deployment, mount.target, mount), show)
    run.run(names, jobs)
    return list(run.built.values())


def find_compile_host(cache: JitCache) -> AgentHost:
    """Where to compile: in a running service with the cache, else in the image with the cache
    mounted (created if missing). EngineError without either.
    """
    profile = cache.deployment.profile
    place = cache.place()
    if place is not None and place.container is not None:
        return place
    if cache.deployment.engine.image(profile.image_name) is None:
        raise EngineError(
            f"no service of profile {profile.name} runs, and its image {profile.image_name} is not built",
            hint=f"run `{profile.hint('build')}`",
        )
    if profile.mounted_sources:
        raise EngineError(
            f"no service of profile {profile.name} runs, and mounted sources are installed only in one",
            hint=f"run `{profile.hint('up', profile.default_service or 'dev')}`",
        )
    mount = create_mount(cache)
    return temporary_host(cache.deployment, mount.target, mount)


def _runner(cache: JitCache, place: AgentHost) -> RunLines:
    engine = cache.deployment.engine

    def run(argv: Sequence[str], on_line: Callable[[str], None], env: Mapping[str, str]) -> int:
        if place.container is not None:
            # As the service's user, who will load and rebuild the modules.
            return engine.exec(
                place.container.id, argv, env=env, workdir="/", timeout=HOURS, on_line=on_line
            ).code
        profile = cache.deployment.profile
        service = profile.default_service
        env = {**service_env(profile), **user_env(profile, service), **env}
        user = run_as(engine, profile, service)
        return engine.run_once(
            place.image,
            argv,
            mounts=place.mounts,
            env=env,
            user=user,
            timeout=HOURS,
            memory=0,
            on_line=on_line,
        ).code

    return run
