"""The Python programs of a container (`inside/probe/running.py`), and an import that is tried
beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envgen.binding import JsonObject, ShapeError, bind
from envgen.doctor.probed import TIMEOUT, Imported, Origins
from envgen.engine.values import MISSHAPEN, Container
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.render import environment as promised

PROGRAMS = run.Program("probe/running")
IMPORT = run.Program("importing", flags=("-X", "faulthandler"))
IMPORT_TIME = 60  # seconds; importing vLLM takes 2 to 20
IMPORTING = 4 << 30  # bytes that it may take
AUTO = 8 << 30  # bytes: a little more than memory-guard keeps free by itself


@dataclass(frozen=True)
class Tried:
    """An import of a package. ``problem``: how it failed; ``untried``: why it was not tried, or not
    to its end.
    """

    file: str = ""
    seconds: float = 0.0
    problem: str = ""
    untried: str = ""


@dataclass(frozen=True)
class Mapped:
    """A library of a package that a process has mapped. ``gone``: the file was replaced since;
    ``changed``: seconds since 1970.
    """

    package: str
    folder: str
    file: str
    gone: bool = False
    changed: float = 0.0


@dataclass(frozen=True)
class PythonProcess:
    """A Python program of a container. ``cells``: what a program that is started like it imports;
    none where its title hides how it was started (vLLM's workers). ``started``: seconds since 1970.
    """

    pid: int
    started: float
    title: str
    python_path: str = ""
    mapped: tuple[Mapped, ...] = ()
    cells: tuple[Imported, ...] = ()
    origins: tuple[Origins, ...] = ()
    named: tuple[str, ...] = ()  # packages that its code names in an import
    error: str = ""


@dataclass(frozen=True)
class Age:
    """The Python file of a package's folder that changed last. ``changed``: seconds since 1970."""

    package: str
    folder: str
    file: str
    changed: float


@dataclass(frozen=True)
class Running:
    """The Python programs of a container's own command."""

    service: str
    container: Container | None = None
    processes: tuple[PythonProcess, ...] = ()
    origins: tuple[Origins, ...] = ()  # of mounted packages
    ages: tuple[Age, ...] = ()
    trouble: str = ""  # why they could not be looked at


def ask_running(
    execute: run.Execute, python: str, request: JsonObject, container: Container
) -> Running:
    """The Python programs of a container."""
    running = Running(container.service, container)
    try:
        answer = run.ask(
            execute, python, PROGRAMS, {**request, "seconds": TIMEOUT}, timeout=TIMEOUT
        )
        if isinstance(answer, run.NoAnswer):
            return replace(running, trouble=answer.seen)
        bound = bind(
            Running, {**answer, "service": container.service, "container": None, "trouble": ""}
        )
        return replace(bound, container=container)
    except (EnvgenError, ShapeError) as problem:
        return replace(running, trouble=str(problem).splitlines()[0][:300])


def spared(profile: Profile, service: str) -> int:
    """Bytes that the guard of a server keeps free: at least so much is left by what is done beside
    it.
    """
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
            return Tried(problem=reply.seen)
        if "answer" not in reply:
            return Tried(untried=str(reply.get("skipped"))[:300])
        return bind(Tried, {**reply["answer"], "seconds": float(reply["seconds"])})
    except (EnvgenError, *MISSHAPEN) as problem:
        return Tried(untried=str(problem).splitlines()[0][:300])
