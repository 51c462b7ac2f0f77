"""Collect everything that the checks judge: engine, host, image, container and the probe.

The probe's exec takes the longest, so it starts as soon as the container is known. Everything else is done meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TypeAlias

from envgen.background import in_background
from envgen.doctor import collect, surroundings
from envgen.doctor.claims import LABEL, claims
from envgen.doctor.expectation import compose_env, mounts
from envgen.doctor.model import Context, Finding, Remedy, Wish, error
from envgen.engine.base import Container, Engine, ExecResult
from envgen.errors import EngineError, EnvgenError
from envgen.profile.model import Profile

Connect = Callable[[], "Engine"]
Answer: TypeAlias = "tuple[ExecResult | EnvgenError, tuple[float, float]]"  # and when it was asked and given
LOOK = 2.0  # seconds between two looks at an engine whose answer is awaited


def attempt(ask: Callable[[], ExecResult]) -> ExecResult | EnvgenError:
    """The result, or the error as a value."""
    try:
        return ask()
    except EnvgenError as problem:
        return problem


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


def gather(wish: Wish, connect: Connect) -> tuple[Context, list[Finding]]:
    """Everything there is to know. What can't be had becomes a finding; the rest continues."""
    try:
        engine = connect()
        everything = engine.containers(project=wish.profile.compose_name, all=True)
        containers = tuple(one for one in everything if not one.one_off)
    except EngineError as problem:
        return _without_engine(wish, problem)
    container = choose_container(containers, wish.service)
    service = container.service if container else choose_service(wish.profile, wish.service)
    python, probing, name = collect.program(wish.profile), None, ""
    if container is not None and container.state == "running":
        label, name = container.labels.get(LABEL, ""), container.id
        patched = claims(wish.profile, wish.root, label) if label else []
        words = collect.argv(wish.profile)
        request = collect.request(wish.profile, service, claims=patched, load=wish.load)
        text = collect.probe_program(request)
        probing = in_background(lambda: _timed(lambda: engine.exec(name, words, stdin=text, timeout=collect.TIMEOUT)))
    # From here on the probe is under way.
    facts = surroundings.look(wish, service, containers, engine)
    answer, asked = _awaited(probing, engine, name) if probing else (None, None)
    throw_away = probing is None and wish.throw_away and facts["image"] is not None
    if throw_away:
        answer = attempt(lambda: _throw_away(wish, service, engine))
    probe, trouble = collect.read(answer, python) if answer is not None else (None, None)
    found = Context(wish.profile, service, project_file=wish.project_file, container=container, probe=probe,
                    trouble=trouble, is_throw_away=throw_away, asked=asked,
                    **facts)  # fmt: skip
    return found, []


def _awaited(probing: Future[Answer], engine: Engine, container: str) -> Answer:
    """What the probe said. An engine that no longer answers won't hand it over."""
    while not wait([probing], timeout=LOOK).done:
        before = time.time()
        try:
            engine.inspect(container)
        except EngineError as problem:
            return problem, (before, time.time())
    return probing.result()


def _timed(ask: Callable[[], ExecResult]) -> Answer:
    """The result, and this machine's clock before and after."""
    before = time.time()
    return attempt(ask), (before, time.time())


def _throw_away(wish: Wish, service: str, engine: Engine) -> ExecResult:
    """The probe in a container of its own, with what Compose would mount. Not in a thread: it handles signals."""
    mounted, env = mounts(wish.profile, wish.root, engine), compose_env(wish.profile, service)
    image = engine.image(wish.profile.image_name)
    patched = claims(wish.profile, wish.root, image.labels.get(LABEL, "") if image else "")
    targets = [mount.target for mount in mounted]
    asked = collect.request(wish.profile, service, paths=targets, claims=patched, load=wish.load)
    name, words, text = wish.profile.image_name, collect.argv(wish.profile), collect.probe_program(asked)
    return engine.run_once(name, words, stdin=text, mounts=mounted, env=env, network="none", timeout=collect.TIMEOUT)


def _without_engine(wish: Wish, problem: EngineError) -> tuple[Context, list[Finding]]:
    """The sentence of the engine's room as a finding, and what can be told of this machine alone."""
    said = problem.problems[0]
    quoted = re.search(r"`([^`\n]+)`", said.hint)
    cure = Remedy(quoted[1] if quoted else "docker version")
    finding = error("no Docker Engine to ask", said.message, "a running Docker Engine", cure, case="absent")
    context = Context(wish.profile, choose_service(wish.profile, wish.service), project_file=wish.project_file,
                      host=surroundings.host_facts(wish.profile, None))  # fmt: skip
    return context, [replace(finding, check="host.docker")]
