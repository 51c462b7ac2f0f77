"""What doctor says and what it looks at: findings, checks, and the frozen facts that checks judge.

Evidence is collected first (by the probe inside the container, by the engine and on the host), judgement comes after: a
check is a pure function of one `Context`, so each is tested from recorded facts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from envgen.doctor.evidence import Probe
from envgen.doctor.owners import Foreign
from envgen.engine.values import Container, EngineInfo, Image
from envgen.errors import Problem
from envgen.profile.model import Profile


class Severity(IntEnum):
    """How bad a finding is. They compare: ``Severity.ERROR > Severity.WARNING``."""

    OK = 0
    INFO = 1  # worth knowing; nothing to do
    WARNING = 2  # works now, will hurt
    ERROR = 3  # the container does something else than the profile says

    @property
    def word(self) -> str:
        """As it is printed and written to JSON."""
        return self.name.lower()


class Where(IntEnum):
    """What a check needs, in the order in which the report shows it."""

    HOST = 0
    IMAGE = 1
    CONTAINER = 2
    INSIDE = 3
    NODES = 4

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Remedy:
    """Exactly one thing to do: a command to type, or a line of the project file."""

    text: str
    is_line: bool = False

    def __post_init__(self) -> None:
        if "\n" in self.text:
            raise ValueError("a remedy is one line")


@dataclass(frozen=True)
class Finding:
    """One judgement. ``seen``, ``expected`` and ``remedy`` are there whenever the severity is above INFO."""

    severity: Severity
    title: str
    seen: str = ""
    expected: str = ""
    remedy: Remedy | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""  # filled in by the runner, as are the place and, of several machines, which one
    where: Where = Where.HOST
    node: str = ""

    @property
    def case(self) -> str:
        """Which of the check's cases this is; never empty above INFO, where docs/doctor.md describes it."""
        return str(self.evidence.get("case", ""))


def ok(title: str, **evidence: Any) -> Finding:
    """All is well, and what that means."""
    return Finding(Severity.OK, title, evidence=evidence)


def info(title: str, seen: str = "", **evidence: Any) -> Finding:
    """Worth knowing."""
    return Finding(Severity.INFO, title, seen, evidence=evidence)


def warning(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.WARNING, title, seen, expected, remedy, evidence)


def error(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.ERROR, title, seen, expected, remedy, evidence)


@dataclass(frozen=True)
class Host:
    """Facts of this machine. None = unknown; of a version, that there is no such plug-in."""

    disk_path: str = ""
    disk_free: int | None = None
    buildx: str | None = ""
    compose: str | None = ""
    busy_ports: tuple[tuple[int, str], ...] = ()  # (port, who has it)


@dataclass(frozen=True)
class Trouble:
    """Why the probe brought no document back: a sentence, and what was seen."""

    title: str
    seen: str


@dataclass(frozen=True)
class Context:
    """Everything that checks may look at. A part that couldn't be had is None, and its checks are skipped."""

    profile: Profile
    service: str  # the service that is looked at, or would be started
    env: Mapping[str, str] = field(default_factory=dict)  # what the profile gives that service
    digest: str = ""  # of the image that the profile would render now; empty: not known
    project_file: str = "envgen.yaml"
    engine: EngineInfo | None = None
    host: Host | None = None
    image: Image | None = None
    container: Container | None = None
    probe: Probe | None = None
    trouble: Trouble | None = None
    causes: Mapping[str, str] = field(default_factory=dict)  # container that ended -> what its log says about it
    others: tuple[Container, ...] = ()  # containers of the profile's other services, running or not
    checkouts: Mapping[str, str] = field(default_factory=dict)  # source -> folder on this machine
    inodes: Mapping[str, int] = field(default_factory=dict)  # source -> number of that folder; 0: it is not there
    foreign: tuple[Foreign, ...] = ()  # files of root's in checkouts and cache folders
    refused: tuple[Problem, ...] = ()  # what `envgen up` would refuse besides what other checks see
    # Service -> what its weights lack (nothing: they are whole), of those that name a model and could be looked at.
    weights: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    is_throw_away: bool = False  # started by `--run`
    asked: tuple[float, float] | None = None  # this machine's clock before and after the probe ran

    @property
    def inside(self) -> Probe:
        """The probe's facts, for checks that need them."""
        assert self.probe is not None
        return self.probe


Judge = Callable[[Context], list[Finding]]


@dataclass(frozen=True)
class Check:
    """One question. Its judge returns findings, an OK one included: silence means that there was nothing to judge.

    ``needs``: the part of the context without which there is nothing to ask. docs/doctor.md describes each finding.
    """

    id: str
    where: Where
    judge: Judge
    needs: str = ""

    def __call__(self, context: Context) -> list[Finding]:
        """Judge, unless the part that is needed is missing."""
        return [] if self.needs and getattr(context, self.needs) is None else self.judge(context)


def check(id: str, where: Where, needs: str = "") -> Callable[[Judge], Check]:
    """Make a check of the function below."""
    return lambda judge: Check(id, where, judge, needs)


@dataclass(frozen=True)
class Subject:
    """What the user asked for, and what only the caller knows."""

    profile: Profile
    root: Path
    service: str | None = None
    throw_away: bool = False  # start one when nothing runs
    project_file: str = "envgen.yaml"
    load: bool = False  # also load the vocabularies for real: takes a second
