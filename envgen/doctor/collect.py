"""Collect the evidence for the checks: from the probe in the container, from the engine and from this machine.

The probe takes the longest, so it starts as soon as the container is known; the rest is collected meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from envgen import files
from envgen.binding import ShapeError, bind
from envgen.deployment import Deployment
from envgen.doctor.checks.imports import NAMES
from envgen.doctor.model import (
    Context,
    Finding,
    Foreign,
    Host,
    Probe,
    Remedy,
    Running,
    Subject,
    Tried,
    Trouble,
    error,
    from_json,
)
from envgen.engine import box
from envgen.engine.client import Engine
from envgen.engine.endpoint import plugin_version
from envgen.engine.host import memory_limits
from envgen.engine.owner import caller
from envgen.engine.process import in_background
from envgen.engine.values import MISSHAPEN, Container, EngineInfo, ExecResult
from envgen.errors import EngineError, EnvgenError
from envgen.inside import run
from envgen.patches.source import build_requires
from envgen.profile.model import Profile
from envgen.render import environment as promised
from envgen.render.plan import wheel_folder
from envgen.serve.preflight import holders

PROGRAM = run.Program("probe/facts")
PROGRAMS = run.Program("probe/running")
IMPORT = run.Program("deep", flags=("-X", "faulthandler"))
IMPORT_TIME = 60  # seconds; importing vLLM takes 2 to 20
IMPORTING = 4 << 30  # bytes that it may take
AUTO = 8 << 30  # bytes: a little more than memory-guard keeps free by itself
Facts: TypeAlias = "tuple[Probe | None, Trouble | None]"  # exactly one of the two
Answer: TypeAlias = "tuple[Facts, tuple[float, float]]"  # with the time before and after
T = TypeVar("T")
PER_MACHINE = ("MAX_JOBS", "ENVGEN_MEMORY_FLOOR")  # computed or chosen when a service starts
MOST = 50_000  # entries of a folder that are searched for files of root, breadth first
LOOK = 2.0  # seconds between two checks that the engine still answers
TIMEOUT = 15  # seconds; the probe's own limit is 10
DATA = ("csrc", "include", "cutlass", "spdlog")  # what FlashInfer's JIT compiles from
ALSO = ("flashinfer_jit_cache", "flashinfer_cubin")
DISTRIBUTIONS = (
    "torch", "triton", "flash-attn", "flashinfer-cubin", "flashinfer-jit-cache", "apache-tvm-ffi", "nvidia-*", "opencv",
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip


def folders(profile: Profile, service: str) -> list[str]:
    """The folders to start Python in: those of the service and of a shell, each checkout and its parent, / and ~."""
    described = profile.services.get(service)
    found = [str(described.working_dir)] if described and described.working_dir else []
    found.append(str(profile.working_dir))
    for source in profile.mounted_sources.values():
        found += [str(source.mount).rsplit("/", 1)[0] or "/", str(source.mount)]
    return list(dict.fromkeys([*found, "/", "~"]))


def flags(profile: Profile, service: str) -> list[str]:
    """The flags of vLLM's server: the service's, or else those of the first service that starts one."""
    mine = [profile.services[service]] if service in profile.services else []
    for described in mine if any(one.is_vllm_server for one in mine) else list(profile.services.values()):
        if described.is_vllm_server:
            words = described.argv[: described.argv.index("--")] if "--" in described.argv else described.argv
            head = words.index("-m") + 2 if "-m" in words else 1  # after `vllm` or `python -m MODULE`
            return [word.partition("=")[0] for word in words[head:] if re.match("--?[a-zA-Z]", word)]
    return []


def request(
    profile: Profile,
    service: str,
    *,
    paths: Iterable[str] | None = None,
    load: bool = False,
) -> dict[str, Any]:
    """The probe's request. ``paths``: the mounts to look at (default: all of the profile).

    ``load``: also load the vocabularies, which takes a second.
    """
    sources = profile.sources.values()
    wheels = {name: wheel_folder(source) for name, source in profile.mounted_sources.items() if source.binaries}
    if paths is None:
        targets = [source.mount for source in profile.mounted_sources.values()]
        paths = map(str, [*targets, *(cache.path for cache in profile.caches.values())])
    has_flashinfer = any(source.package == "flashinfer" for source in sources)
    return {
        "packages": [
            {
                "package": source.package, "distribution": source.distribution, "mount": str(source.mount),
                "scripts": list(source.console_scripts), "data": list(DATA) if source.package == "flashinfer" else [],
                "source": name, "wheel": wheels.get(name, ""), "names": list(NAMES.get(source.package, ())),
            }
            for name, source in profile.sources.items()
        ],
        "folders": folders(profile, service),
        "also": list(ALSO) if has_flashinfer else [],
        "distributions": list(DISTRIBUTIONS),
        "paths": list(paths),
        "encodings": [f"{profile.tiktoken.directory}/{name}.tiktoken" for name in profile.tiktoken.encodings],
        "flags": flags(profile, service),
        "load": list(profile.tiktoken.encodings) if load else [],
    }  # fmt: skip


def ask(execute: run.Execute, python: str, request: Mapping[str, Any]) -> Facts:
    """Run the probe in a container."""
    results: list[ExecResult] = []

    def recorded(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        results.append(execute(argv, stdin, timeout))
        return results[-1]

    try:
        answer = run.ask(recorded, python, PROGRAM, request, timeout=TIMEOUT)
    except EnvgenError as problem:
        return not_run(problem)
    if isinstance(answer, run.NoAnswer):
        seen = "; ".join([str(answer), f"{len(results[-1].stdout)} bytes of output", *answer.stack[-1:]])
        return None, Trouble("the probe returned no document", seen[:300])
    try:
        # What is before the runner's mark was printed while Python started.
        return from_json(answer, noise=max(0, results[-1].stdout.rfind(run.BEGIN))), None
    except ShapeError as problem:
        return None, Trouble("the probe's document can't be read", str(problem)[:300])


def ask_running(execute: run.Execute, python: str, request: Mapping[str, Any], container: Container) -> Running:
    """The Python programs of a container."""
    running = Running(container.service, container)
    try:
        answer = run.ask(execute, python, PROGRAMS, {**request, "seconds": TIMEOUT}, timeout=TIMEOUT)
        if isinstance(answer, run.NoAnswer):
            return replace(running, trouble=str(answer)[:300])
        found = bind(Running, {**answer, "service": container.service, "container": None, "trouble": ""})
        if any(
            len(c.portions) != len(c.entries) for one in found.processes for c in one.cells if c.kind == "namespace"
        ):
            raise ShapeError("a namespace needs an entry for each portion")
        return replace(found, container=container)
    except (EnvgenError, ShapeError) as problem:
        return replace(running, trouble=str(problem).splitlines()[0][:300])


def spared(profile: Profile, service: str) -> int:
    """Bytes that the guard of a server keeps free: at least so much is left by what is done beside it."""
    floor = promised.memory_floor(profile, service)
    return AUTO if floor.startswith("auto") else int(floor or 0)


def ask_import(execute: run.Execute, python: str, package: str, spared: int) -> Tried:
    """`import PACKAGE`, unless a server beside it would get short of memory."""
    request = {"package": package, "least": spared + IMPORTING}
    try:
        reply = run.ask(execute, python, IMPORT, request, timeout=IMPORT_TIME)
        if isinstance(reply, run.NoAnswer):
            if reply.is_late:
                return Tried(untried=f"`import {package}` had not ended after {IMPORT_TIME} s")
            end = f"it ended Python with exit code {reply.code}: {''.join(reply.stack[-1:])}"
            return Tried(problem=(end if reply.error == "no answer" else str(reply))[:300])
        if "answer" not in reply:
            return Tried(untried=str(reply.get("skipped"))[:300])
        return bind(Tried, {**reply["answer"], "seconds": float(reply["seconds"])})
    except (EnvgenError, *MISSHAPEN) as problem:
        return Tried(untried=str(problem).splitlines()[0][:300])


def not_run(problem: EnvgenError) -> Facts:
    return None, Trouble("the probe could not be run", str(problem).splitlines()[0][:300])


def service_env(profile: Profile, service: str) -> dict[str, str]:
    """The variables that a container of the service should have: the image's, overridden by Compose's. The image's
    PYTHONPATH is only the beginning: the base image's follows."""
    env = {**promised.derived_env(profile), **promised.compose_env(profile, service)}
    return {name: value for name, value in env.items() if name not in PER_MACHINE}


def build_needs(profile: Profile, root: Path) -> frozenset[str]:
    """The build requirements of mounted checkouts, which envgen-install installs beside the image's packages."""
    found: set[str] = set()
    for source in profile.mounted_sources.values():
        assert source.origin.checkout is not None
        file = root / Path(source.origin.checkout.path).expanduser() / "pyproject.toml"
        text = or_none(lambda at=file: files.read(at).decode("utf-8", "replace"))  # type: ignore[misc]
        found.update(build_requires(text or ""))
    return frozenset(found)


def foreign(profile: Profile, root: Path) -> tuple[Foreign, ...]:
    """The folders of the profile that contain files of root; none if envgen runs as root."""
    machine = promised.compose_environment(profile, root)
    wanted = {name: promised.checkout_variable(name) for name in profile.mounted_sources}
    wanted |= {f"cache {name}": promised.cache_variable(name) for name, cache in profile.caches.items() if cache.host}
    if caller()[0] == 0:
        return ()
    places = {name: machine[variable] for name, variable in wanted.items() if machine.get(variable)}
    found = {name: of_root(folder) for name, folder in places.items()}
    return tuple(Foreign(name, places[name], len(paths), tuple(paths[:3])) for name, paths in found.items() if paths)


def of_root(folder: str, most: int = MOST) -> list[str]:
    """Paths in ``folder`` that belong to root, itself included; links are not followed."""
    try:
        found = [folder] if is_of_root(folder, os.lstat(folder)) else []
    except OSError:
        return []
    folders, seen = deque([folder]), 0
    while folders and seen < most:
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    seen += 1
                    if is_of_root(entry.path, entry.stat(follow_symlinks=False)):
                        found.append(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue  # readable by root only, and counted above
    return found


def is_of_root(_path: str, status: os.stat_result) -> bool:
    return status.st_uid == 0


def choose_service(profile: Profile, wanted: str | None) -> str:
    """The service for remedies when none runs: the wanted one, `dev`, or the first."""
    if wanted:
        return wanted
    return "dev" if "dev" in profile.services else next(iter(profile.services), "dev")


def choose_container(containers: Sequence[Container], wanted: str | None) -> Container | None:
    """The container to examine: a running one of the wanted service (else `dev`, else any), or an ended one, rather one
    that has failed."""
    mine = [one for one in containers if not wanted or one.service == wanted]
    running = sorted((one for one in mine if one.state == "running"), key=lambda one: one.service != "dev")
    if running:
        return running[0]
    ended = [one for one in mine if one.state != "created"]
    failed = [one for one in ended if one.exit_code not in (0, 143)]  # 143: ended by `docker stop`
    return next(iter(mine if wanted else [*failed, *ended]), None)


def gather(subject: Subject) -> tuple[Context, list[Finding]]:
    """All evidence; without an engine, that of this machine and a finding."""
    deployment, profile = subject.deployment, subject.deployment.profile
    try:
        engine = deployment.engine
        containers = tuple(one for one in deployment.containers(all=True) if not one.one_off)
    except EngineError as problem:
        return _without_engine(subject, problem)
    container = choose_container(containers, subject.service)
    service = container.service if container else choose_service(profile, subject.service)
    python, probing, asked = run.shell_python(profile), None, None
    probe, trouble, importing = None, None, dict[str, Future[Tried]]()
    if container is not None and container.state == "running":
        question = _request(subject, service)
        inside = run.in_container(engine, container.id)
        probing = in_background(lambda: _timed(lambda: ask(inside, python, question)))
        importing = {
            source.package: in_background(partial(ask_import, inside, python, source.package, spared(profile, service)))
            for source in profile.sources.values()
        }
    looking = {
        one.id: in_background(partial(_programs, subject, one, python))
        for one in containers
        if one.state == "running" and profile.sources
    }
    facts = _look(subject, service, containers)
    is_alone = probing is None and subject.may_start and facts["image"] is not None
    if probing is not None and container is not None:
        (probe, trouble), asked = _awaited(probing, engine, container.id)
    elif is_alone:  # not in a thread: a temporary container needs signal handlers
        inside, mounted = deployment.temporary_container(service)
        probe, trouble = ask(inside, python, _request(subject, service, [mount.target for mount in mounted]))
    # Where the engine went away, nothing is waited for.
    running = tuple(_in_time(looking[one.id], one) for one in containers if one.id in looking and trouble is None)
    tried = {package: one.result() for package, one in importing.items()} if trouble is None else {}
    return Context(
        profile, service, project_file=subject.project_file, container=container, probe=probe, trouble=trouble,
        is_temporary=is_alone, asked=asked, running=running, tried=tried, **facts,
    ), []  # fmt: skip


def _request(subject: Subject, service: str, paths: Iterable[str] | None = None) -> dict[str, Any]:
    return request(subject.deployment.profile, service, paths=paths, load=subject.load)


def _programs(subject: Subject, container: Container, python: str) -> Running:
    execute = run.in_container(subject.deployment.engine, container.id)
    return ask_running(execute, python, _request(subject, container.service), container)


def _in_time(looking: Future[Running], container: Container) -> Running:
    try:
        return looking.result(TIMEOUT + run.GRACE)
    except TimeoutError:
        return Running(container.service, container, trouble="no answer in time")


def _awaited(probing: Future[Answer], engine: Engine, container: str) -> Answer:
    """Wait for the probe, as long as the engine answers."""
    while not wait([probing], timeout=LOOK).done:
        before = time.time()
        try:
            engine.inspect(container)
        except EngineError as problem:
            return not_run(problem), (before, time.time())
    return probing.result()


def _timed(ask: Callable[[], Facts]) -> Answer:
    """The facts, with this machine's clock before and after."""
    before = time.time()
    return ask(), (before, time.time())


def _without_engine(subject: Subject, problem: EngineError) -> tuple[Context, list[Finding]]:
    """The evidence of this machine, and the engine's error as a finding."""
    profile, seen = subject.deployment.profile, problem.problems[0].message
    finding = error("no Docker Engine", seen, "a running Docker Engine", Remedy(problem.command), case="absent")
    service, host = choose_service(profile, subject.service), _host_facts(None)
    context = Context(profile, service, project_file=subject.project_file, host=host, box=or_none(box.look))
    return context, [replace(finding, check="host.docker")]


# --- outside the container --------------------------------------------------------------------------------------------


def _look(subject: Subject, service: str, containers: Sequence[Container]) -> dict[str, Any]:
    """The fields of a Context that need nothing from inside the container."""
    deployment, profile, engine = subject.deployment, subject.deployment.profile, subject.deployment.engine
    info = or_none(engine.info)
    image = or_none(lambda: deployment.image)
    local = info is not None and info.local
    machine = promised.compose_environment(profile, deployment.root) if local else {}
    folders = {name: machine.get(promised.checkout_variable(name), "") for name in profile.mounted_sources}
    return {
        "engine": info,
        "image": image,
        "host": _host_facts(info, _busy_ports(deployment, containers) if local else ()),
        "box": or_none(box.look) if local else None,
        "env": service_env(profile, service),
        "others": tuple(one for one in containers if one.service != service),
        "checkouts": folders,
        "inodes": {
            name: found.st_ino if (found := or_none(Path(path).stat)) else 0 for name, path in folders.items() if path
        },
        "build_needs": build_needs(profile, deployment.root) if local else frozenset(),
        "unpatched": deployment.lacking_patches if local else {},
        "foreign": foreign(profile, deployment.root) if local else (),
        "digest": or_none(lambda: deployment.digest) or "",
        "outdated": tuple(map(str, or_none(lambda: deployment.outdated) or ())),
        "is_unlocked": bool(or_none(lambda: deployment.needs_lock)),
        **_own_compose(deployment),
    }


def _own_compose(deployment: Deployment) -> dict[str, Any]:
    """What the profile's own Compose file makes of its services."""
    if deployment.profile.compose is None:
        return {}
    try:
        changes = {name: tuple(deployment.own_changes(name)) for name in deployment.profile.services}
        return {"effective": deployment.effective, "own_changes": changes}
    except (EnvgenError, OSError) as error:
        return {"own_trouble": str(error).splitlines()[0]}


def or_none(ask: Callable[[], T]) -> T | None:
    """The result; None if it fails."""
    try:
        return ask()
    except (EnvgenError, OSError):
        return None


def _host_facts(info: EngineInfo | None, ports: tuple[tuple[int, str], ...] = ()) -> Host:
    local = info is not None and info.local
    return Host(
        disk_path=info.data_root if info else "",
        disk_free=or_none(lambda: shutil.disk_usage(info.data_root).free) if info and local else None,
        buildx=or_none(lambda: plugin_version("buildx")),
        compose=or_none(lambda: plugin_version("compose")),
        busy_ports=ports,
        limits=memory_limits() if local else {},
    )


def _busy_ports(deployment: Deployment, containers: Sequence[Container]) -> tuple[tuple[int, str], ...]:
    """The ports of services that don't run, with what uses them."""
    running = {one.service for one in containers if one.state == "running"}
    mine = {port.host for one in containers if one.state == "running" for port in one.ports}
    wanted = [
        port
        for name, service in (or_none(lambda: deployment.effective) or deployment.profile).services.items()
        if name not in running
        for port in service.host_ports
        if port.host not in mine
    ]
    holder = or_none(lambda: holders(deployment)) if wanted else None
    return tuple({port.host: who for port in wanted if holder and (who := holder(port))}.items())
