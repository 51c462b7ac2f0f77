"""Collect everything that the checks judge: engine, host, image, container and the probe.

The probe's exec takes the longest, so it starts as soon as the container is known. Everything else is done meanwhile.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from envgen.doctor import collect
from envgen.doctor.claims import LABEL, claims
from envgen.doctor.expectation import image_digest, service_env, throw_away
from envgen.doctor.model import Context, Finding, Host, Remedy, Subject, error
from envgen.doctor.owners import foreign
from envgen.engine.client import Engine
from envgen.engine.endpoint import plugin_version
from envgen.engine.owner import ours
from envgen.engine.process import in_background
from envgen.engine.values import Container, EngineInfo
from envgen.errors import EngineError, EnvgenError
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.render.environment import checkout_variable, compose_environment
from envgen.serve.preflight import holders, with_ports

Connect = Callable[[], "Engine"]
Answer: TypeAlias = "tuple[collect.Facts, tuple[float, float]]"  # and when it was asked and given
NOTHING: collect.Facts = (None, None)
T = TypeVar("T")
LOOK = 2.0  # seconds between two looks at an engine whose answer is awaited


def choose_service(profile: Profile, wanted: str | None) -> str:
    """The service that remedies name when none runs: the wanted one, `dev`, else the first."""
    if wanted:
        return wanted
    return "dev" if "dev" in profile.services else next(iter(profile.services), "dev")


def choose_container(containers: Sequence[Container], wanted: str | None) -> Container | None:
    """The running container: of the wanted service, else of `dev`, else any; an ended one if it is wanted or failed."""
    mine = [one for one in containers if not wanted or one.service == wanted]
    running = sorted((one for one in mine if one.state == "running"), key=lambda one: one.service != "dev")
    if running:
        return running[0]
    # One that ended by itself is worth a look; 143 is what `docker stop` leaves of a well-behaved program.
    failed = [one for one in mine if one.state != "created" and one.exit_code not in (0, 143)]
    return mine[0] if wanted and mine else failed[0] if failed else None


def gather(subject: Subject, connect: Connect) -> tuple[Context, list[Finding]]:
    """Everything there is to know. What can't be had becomes a finding; the rest continues."""
    try:
        engine = connect()
        everything = ours(engine.containers(project=subject.profile.compose_name, all=True), subject.root)
        containers = tuple(one for one in everything if not one.one_off)
    except EngineError as problem:
        return _without_engine(subject, problem)
    subject = replace(subject, profile=with_ports(subject.profile, containers))
    container = choose_container(containers, subject.service)
    service = container.service if container else choose_service(subject.profile, subject.service)
    python, probing, name = collect.program(subject.profile), None, ""
    if container is not None and container.state == "running":
        label, name = container.labels.get(LABEL, ""), container.id
        patched = claims(subject.profile, subject.root, label) if label else []
        request = collect.request(subject.profile, service, claims=patched, load=subject.load)
        inside = run.in_container(engine, name)
        probing = in_background(lambda: _timed(lambda: collect.ask(inside, python, request)))
    # From here on the probe is under way.
    facts = _look(subject, service, containers, engine)
    (probe, trouble), asked = _awaited(probing, engine, name) if probing else (NOTHING, None)
    is_alone = probing is None and subject.throw_away and facts["image"] is not None
    if is_alone:
        probe, trouble = _throw_away(subject, service, engine)
    found = Context(subject.profile, service, project_file=subject.project_file, container=container, probe=probe,
                    trouble=trouble, is_throw_away=is_alone, asked=asked,
                    **facts)  # fmt: skip
    return found, []


def _awaited(probing: Future[Answer], engine: Engine, container: str) -> Answer:
    """What the probe said. An engine that no longer answers won't hand it over."""
    while not wait([probing], timeout=LOOK).done:
        before = time.time()
        try:
            engine.inspect(container)
        except EngineError as problem:
            return collect.not_run(problem), (before, time.time())
    return probing.result()


def _timed(ask: Callable[[], collect.Facts]) -> Answer:
    """The result, and this machine's clock before and after."""
    before = time.time()
    return ask(), (before, time.time())


def _throw_away(subject: Subject, service: str, engine: Engine) -> collect.Facts:
    """The probe in a container of its own, with what Compose would mount. Not in a thread: it handles signals."""
    inside, mounted = throw_away(engine, subject.profile, subject.root, service)
    image = engine.image(subject.profile.image_name)
    patched = claims(subject.profile, subject.root, image.labels.get(LABEL, "") if image else "")
    targets = [mount.target for mount in mounted]
    asked = collect.request(subject.profile, service, paths=targets, claims=patched, load=subject.load)
    return collect.ask(inside, collect.program(subject.profile), asked)


def _without_engine(subject: Subject, problem: EngineError) -> tuple[Context, list[Finding]]:
    """The sentence of the engine's room as a finding, and what can be told of this machine alone."""
    said = problem.problems[0]
    quoted = re.search(r"`([^`\n]+)`", said.hint)
    cure = Remedy(quoted[1] if quoted else "docker version")
    finding = error("no Docker Engine to ask", said.message, "a running Docker Engine", cure, case="absent")
    service, host = choose_service(subject.profile, subject.service), _host_facts(subject.profile, None)
    context = Context(subject.profile, service, project_file=subject.project_file, host=host)
    return context, [replace(finding, check="host.docker")]


# --- what is around the container: needs no exec ----------------------------------------------------------------------


def _look(subject: Subject, service: str, containers: Sequence[Container], engine: Engine) -> dict[str, Any]:
    """The parts of a Context that need no exec."""
    profile = subject.profile
    info = attempt(engine.info)
    image = attempt(lambda: engine.image(profile.image_name))
    local = info is not None and info.endpoint.startswith("unix://")
    machine = compose_environment(profile, subject.root) if local else {}
    folders = {name: machine.get(checkout_variable(name), "") for name in profile.mounted_sources}
    return {
        "engine": info,
        "image": image,
        "host": _host_facts(profile, info, _busy_ports(profile, containers, engine) if local else ()),
        "env": service_env(profile, service),
        "others": tuple(one for one in containers if one.service != service),
        "checkouts": folders,
        "inodes": {
            name: found.st_ino if (found := attempt(Path(path).stat)) else 0 for name, path in folders.items() if path
        },
        "foreign": foreign(profile, subject.root) if local else (),
        "digest": attempt(lambda: image_digest(profile, subject.root, image.labels if image else None)) or "",
    }


def attempt(ask: Callable[[], T]) -> T | None:
    """A fact that can't be had is None."""
    try:
        return ask()
    except (EnvgenError, OSError):
        return None


def _host_facts(profile: Profile, info: EngineInfo | None, ports: tuple[tuple[int, str], ...] = ()) -> Host:
    """What costs next to nothing to know: some files, some system calls."""
    local = info is not None and info.endpoint.startswith("unix://")
    return Host(
        disk_path=info.data_root if info else "",
        disk_free=attempt(lambda: shutil.disk_usage(info.data_root).free) if info and local else None,
        buildx=attempt(lambda: plugin_version("buildx")),
        compose=attempt(lambda: plugin_version("compose")),
        busy_ports=ports,
    )


def _busy_ports(profile: Profile, containers: Sequence[Container], engine: Engine) -> tuple[tuple[int, str], ...]:
    """The ports of services that don't run, and who has them."""
    running = {one.service for one in containers if one.state == "running"}
    mine = {port.host for one in containers if one.state == "running" for port in one.ports}
    wanted = [
        port
        for name, service in profile.services.items()
        if name not in running
        for port in service.host_ports
        if not port.auto and port.host not in mine
    ]
    holder = attempt(lambda: holders(engine)) if wanted else None
    return tuple({port.host: who for port in wanted if holder and (who := holder(port))}.items())
