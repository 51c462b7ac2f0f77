"""Collect everything that the checks judge: engine, host, image, container and the probe.

The probe's exec takes the longest, so it starts as soon as the container is known; all else is collected meanwhile.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from envgen.doctor import collect
from envgen.doctor.evidence import Probe
from envgen.doctor.model import Context, Finding, Host, Remedy, Trouble, error
from envgen.errors import EngineError, EnvgenError

if TYPE_CHECKING:
    from envgen.engine.base import Container, Engine, Mount
    from envgen.profile.model import Profile

T = TypeVar("T")
Connect = Callable[[], "Engine"]


@dataclass(frozen=True)
class Wish:
    """What the user asked for, and what only the caller knows."""

    profile: Profile
    root: Path
    service: str | None = None
    throw_away: bool = False  # start one when nothing runs
    mounts: Callable[[Engine], Sequence[Mount]] = lambda _engine: ()  # what Compose would mount
    env: Callable[[str], Mapping[str, str]] = lambda _service: {}  # what the profile gives a service
    digest: Callable[[], str] = lambda: ""  # of the image that the profile would render now
    max_jobs: int | None = None
    project_file: str = "envgen.yaml"


def choose_service(profile: Profile, wanted: str | None) -> str:
    """The service that remedies name when none runs: the wanted one, `dev`, else the first."""
    if wanted:
        return wanted
    return "dev" if "dev" in profile.services else next(iter(profile.services), "dev")


def choose_container(containers: Sequence[Container], wanted: str | None) -> Container | None:
    """The running container: of the wanted service, else of `dev`, else any; a stopped one only if it is wanted."""
    mine = [one for one in containers if not wanted or one.service == wanted]
    running = sorted((one for one in mine if one.state == "running"), key=lambda one: one.service != "dev")
    if running:
        return running[0]
    return mine[0] if wanted and mine else None


def gather(wish: Wish, connect: Connect) -> tuple[Context, list[Finding]]:
    """Everything there is to know. What can't be had becomes a finding, and the rest goes on."""
    profile = wish.profile
    service = choose_service(profile, wish.service)
    context = Context(profile, service, project_file=wish.project_file)
    try:
        engine = connect()
        containers = engine.containers(project=profile.compose_name, all=True)
    except EngineError as problem:
        said = problem.problems[0]
        cure = Remedy(said.hint.splitlines()[0] if said.hint else "docker version")
        finding = replace(
            error("no Docker Engine to ask", said.message, "a running Docker Engine", cure), check="host.docker"
        )
        return replace(context, host=host_facts("", (), wish)), [finding]
    container = choose_container(containers, wish.service)
    context = replace(context, service=container.service if container else service, container=container)
    with ThreadPoolExecutor(2) as pool:
        probing = pool.submit(_probe, wish, context, engine)
        context = _around(wish, context, engine, containers, pool)
        probe, trouble, throw_away = probing.result()
    return replace(context, probe=probe, trouble=trouble, is_throw_away=throw_away), []


def _around(
    wish: Wish, context: Context, engine: Engine, containers: Sequence[Container], pool: ThreadPoolExecutor
) -> Context:
    """The facts that are collected while the probe runs."""
    digest: Future[str] = pool.submit(wish.digest)
    info = _try(engine.info)
    image = _try(lambda: engine.image(wish.profile.image_name))
    running = {one.service for one in containers if one.state == "running"}
    ports = tuple(
        mapping.host
        for name, service in wish.profile.services.items()
        if name not in running
        for mapping in service.ports
    )
    host = host_facts(info.data_root if info else "", ports, wish)
    env = wish.env(context.service)
    return replace(context, engine=info, image=image, host=host, env=env, digest=_try(digest.result) or "")


def _try(ask: Callable[[], T]) -> T | None:
    """A fact that can't be had is None."""
    try:
        return ask()
    except EnvgenError:
        return None


def _probe(wish: Wish, context: Context, engine: Engine) -> tuple[Probe | None, Trouble | None, bool]:
    """Inside the running container, else, when that was asked for, inside a throw-away one. The last: was it one?"""
    python, profile, container = collect.program(wish.profile), wish.profile, context.container
    if container is not None and container.state == "running":
        asked = collect.request(profile, context.service)

        def execute(argv: Sequence[str], stdin: bytes) -> collect.Answer:
            return engine.exec(container.id, argv, stdin=stdin, timeout=collect.TIMEOUT)

        return (*collect.run_probe(execute, python, asked), False)
    if not wish.throw_away or _try(lambda: engine.image(profile.image_name)) is None:
        return None, None, False
    mounts = tuple(wish.mounts(engine))
    asked = collect.request(profile, context.service, paths=[mount.target for mount in mounts])
    env = {**wish.env(context.service)}

    def execute_once(argv: Sequence[str], stdin: bytes) -> collect.Answer:
        name = profile.image_name
        return engine.run_once(name, argv, stdin=stdin, mounts=mounts, env=env, network="none", timeout=collect.TIMEOUT)

    return (*collect.run_probe(execute_once, python, asked), True)


# --- this machine ----------------------------------------------------------------------------------------------------


def host_facts(data_root: str, ports: Sequence[int], wish: Wish) -> Host:
    """Facts that cost nothing: two files, two system calls, and a look at the ports."""
    return Host(
        memory_available=_memory_available(),
        disk_path=data_root,
        disk_free=_disk_free(data_root),
        busy_ports=tuple((port, "another program of this machine") for port in dict.fromkeys(ports) if _is_busy(port)),
        max_jobs=wish.max_jobs,
    )


def _memory_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _disk_free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free if path else None
    except OSError:
        return None  # the engine is on another machine


def _is_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False
