"""Findings, checks, and the facts that checks judge. A check is a pure function of one `Context`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from envgen.bench.trace import RanBackend
from envgen.binding import JsonObject
from envgen.deployment import Deployment
from envgen.doctor.probed import Probe
from envgen.doctor.programs import Running, Tried
from envgen.engine.box import Box
from envgen.engine.values import Container, EngineInfo, Image
from envgen.errors import EngineError, Problem
from envgen.inside.jit.shapes import Module
from envgen.profile.model import Profile
from envgen.serve.ended import Ended
from envgen.text import visible

CMA = (
    1 << 30
    # bytes of CmaFree; a Spark whose kernel has Kexec HandOver on has 9.3 GiB
    # (NVIDIA/NV-Kernels#591)
)
HANDOVER_CURE = "sudo apt-get install nvidia-spark-grub-kho && sudo reboot"


class NamedLevel(IntEnum):
    """An ordered value; ``word`` is its name in output and JSON."""

    @property
    def word(self) -> str:
        return self.name.lower()


class Severity(NamedLevel):
    """How bad a finding is."""

    OK = 0
    INFO = 1  # worth knowing; nothing to do
    WARNING = 2  # works now, will hurt
    ERROR = 3  # the container does not do what the profile says


class Section(NamedLevel):
    """What a check needs, in the order in which the report shows it."""

    HOST = 0
    IMAGE = 1
    CONTAINER = 2
    INSIDE = 3
    NODES = 4


@dataclass(frozen=True)
class Remedy:
    """The fix: one command, or one line of the project file."""

    text: str
    is_line: bool = False

    def __post_init__(self) -> None:
        # A hint of another part may name a file with a line break: still one line, with the break
        # as an escape.
        object.__setattr__(self, "text", visible(self.text))


@dataclass(frozen=True)
class Finding:
    """A check's result. Above INFO it has ``seen``, ``expected`` and ``remedy``."""

    severity: Severity
    title: str
    seen: str = ""
    expected: str = ""
    remedy: Remedy | None = None
    evidence: JsonObject = field(default_factory=dict)
    check: str = ""  # set by the runner, as are the next two
    where: Section = Section.HOST
    node: str = ""

    @property
    def case(self) -> str:
        """The case of the check, as docs/doctor.md describes it; not empty above INFO."""
        return str(self.evidence.get("case", ""))


def ok(title: str) -> Finding:
    return Finding(Severity.OK, title)


def info(title: str, seen: str = "", **evidence: Any) -> Finding:
    return Finding(Severity.INFO, title, seen, evidence=evidence)


def warning(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.WARNING, title, seen, expected, remedy, evidence)


def error(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.ERROR, title, seen, expected, remedy, evidence)


@dataclass(frozen=True)
class Context:
    """The input of all checks. A missing part is None, and its checks are skipped."""

    profile: Profile
    service: str  # the service that is examined, or would be started
    digest: str = ""  # of the image that the profile renders now; "": unknown
    # that the image is missing or out of date; None: unknown
    stale: tuple[Problem, ...] | None = None
    other_base: str = ""  # the ID of the base image here, where the lock has another one
    project_file: str = "envgen.yaml"
    engine: EngineInfo | None = None
    no_engine: EngineError | None = None  # why there is none
    box: Box | None = None  # of this machine; None: the engine is on another one
    image: Image | None = None
    container: Container | None = None
    # what `envgen up` would change of it; None: not compared
    differing: tuple[str, ...] | None = None
    probe: Probe | None = None
    trouble: str = ""  # why there is no probe, though it was asked
    running: tuple[Running, ...] = ()  # of each running container
    # package -> its import in the container
    tried: Mapping[str, Tried] = field(default_factory=dict)
    # container ID -> how its program ended last
    ended: Mapping[str, Ended] = field(default_factory=dict)
    ran: tuple[RanBackend, ...] = ()  # whose kernels, in a trace of this image and settings
    others: tuple[Container, ...] = ()  # containers of the profile's other services, running or not
    checkouts: Mapping[str, str] = field(default_factory=dict)  # source -> folder on this machine
    # source -> inode of that folder; 0: no such folder
    inodes: Mapping[str, int] = field(default_factory=dict)
    modules: tuple[Module, ...] | None = None  # of the JIT cache, as the running container has it
    build_needs: frozenset[str] = frozenset()  # build requirements of mounted checkouts
    # source -> patches that its checkout lacks
    unpatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changes: str = ""  # what changed since the service last started well; "": no such start
    is_unlocked: bool = False  # a production profile without a lock, which a build needs
    is_temporary: bool = False  # started by `--run`

    @property
    def inside(self) -> Probe:
        """The probe's facts, for checks that need them."""
        assert self.probe is not None
        return self.probe


Findings = Generator[Finding, None, Finding | None]
Judge = Callable[..., Findings | list[Finding] | Finding | None]


CHECKED: dict[str, Check] = {}  # by their names


@dataclass(frozen=True)
class Check:
    """A check. Its judge yields findings; the returned one is used if there are none (None: nothing
    to judge).

    ``needs``: the field of the context that it requires and gets as its second argument.
    docs/doctor.md describes each finding.
    """

    id: str
    where: Section
    judge: Judge
    needs: str = ""

    def __post_init__(self) -> None:
        CHECKED[self.id] = self

    def __call__(self, context: Context) -> list[Finding]:
        """The findings; none if the required field is None."""
        part = getattr(context, self.needs) if self.needs else None
        if self.needs and part is None:
            return []
        judged = self.judge(context, part) if self.needs else self.judge(context)
        if isinstance(judged, list):
            return judged
        findings = []
        while isinstance(judged, Generator):
            try:
                findings.append(next(judged))
            except StopIteration as end:
                judged = end.value
        return findings if findings or judged is None else [judged]


def check(id: str, where: Section, needs: str = "") -> Callable[[Judge], Check]:
    """Decorator: make a check of a judge."""
    return lambda judge: Check(id, where, judge, needs)


@dataclass(frozen=True)
class Subject:
    """What the user wants to examine."""

    deployment: Deployment
    service: str | None = None
    may_start: bool = False  # start a container if none runs
    project_file: str = "envgen.yaml"
