"""The data of doctor: findings, checks, and the frozen facts that checks judge.

Evidence is collected first (by the probe inside the container, by the engine and on the host), judgement comes after: a
check is a pure function of one `Context`, so each is tested from recorded facts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from envgen.binding import ShapeError, bind
from envgen.deployment import Deployment
from envgen.engine.values import Container, EngineInfo, Image
from envgen.errors import Problem
from envgen.profile.model import Profile


class Word(IntEnum):
    """A number that compares, with a word as it is printed and written to JSON."""

    @property
    def word(self) -> str:
        return self.name.lower()


class Severity(Word):
    """How bad a finding is."""

    OK = 0
    INFO = 1  # worth knowing; nothing to do
    WARNING = 2  # works now, will hurt
    ERROR = 3  # the container does something else than the profile says


class Where(Word):
    """What a check needs, in the order in which the report shows it."""

    HOST = 0
    IMAGE = 1
    CONTAINER = 2
    INSIDE = 3
    NODES = 4


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
class Foreign:
    """What root owns below one folder. ``name``: the source or the cache; ``examples``: some of the paths."""

    name: str
    folder: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """Facts of this machine. None = unknown; of a version, that there is no such plug-in."""

    disk_path: str = ""
    disk_free: int | None = None
    buildx: str | None = ""
    compose: str | None = ""
    busy_ports: tuple[tuple[int, str], ...] = ()  # (port, who has it)
    swap: int = 0  # bytes
    killers: tuple[str, ...] = ()  # programs that end others when memory runs low
    limits: Mapping[str, int] = field(default_factory=dict)  # cgroup that holds containers -> bytes that it may use


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
    outdated: tuple[str, ...] = ()  # what has changed since the image was built, in words; empty: not known
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
    build_needs: frozenset[str] = frozenset()  # what the builds of mounted checkouts ask for
    unpatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # source -> patches that its checkout lacks
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


Judged = Generator[Finding, None, Finding | None]
Judge = Callable[..., Judged | list[Finding] | Finding | None]


@dataclass(frozen=True)
class Check:
    """One question. Its judge yields what is wrong, and returns the finding for none; None: nothing to judge.

    ``needs``: the part of the context without which there is nothing to ask; the judge gets it as its second argument.
    docs/doctor.md describes each finding.
    """

    id: str
    where: Where
    judge: Judge
    needs: str = ""

    def __call__(self, context: Context) -> list[Finding]:
        """Judge, unless the part that is needed is missing."""
        part = getattr(context, self.needs) if self.needs else None
        if self.needs and part is None:
            return []
        judged = self.judge(context, part) if self.needs else self.judge(context)
        if isinstance(judged, list):
            return judged
        found: list[Finding] = []
        while isinstance(judged, Generator):
            try:
                found.append(next(judged))
            except StopIteration as end:
                judged = end.value
        return found if found or judged is None else [judged]


def check(id: str, where: Where, needs: str = "") -> Callable[[Judge], Check]:
    """Make a check of the function below."""
    return lambda judge: Check(id, where, judge, needs)


@dataclass(frozen=True)
class Subject:
    """What the user asked for, and what only the caller knows."""

    here: Deployment
    service: str | None = None
    throw_away: bool = False  # start one when nothing runs
    project_file: str = "envgen.yaml"
    load: bool = False  # also load the vocabularies for real: takes a second


@dataclass(frozen=True)
class Cell:
    """What one way of starting Python, from one folder, imports for one package."""

    package: str
    how: str  # -c, -m, -P, the name of a console script, or `script` where none is installed
    folder: str
    kind: str  # regular, namespace, module, missing, error, no-folder
    origin: str = ""
    portions: tuple[str, ...] = ()
    entry: str | None = None  # the entry of sys.path that decided; "" is the current folder
    entries: tuple[str | None, ...] = ()  # the same for each portion of a namespace
    finder: str = ""
    error: str = ""


@dataclass(frozen=True)
class Script:
    name: str
    package: str
    path: str | None = None
    interpreter: str | None = None
    flags: tuple[str, ...] = ()
    same: bool = False  # the interpreter is the one that `python3` starts
    version: str = ""


@dataclass(frozen=True)
class Distribution:
    name: str
    location: str
    metadata: str
    kind: str  # dist-info, egg-info
    version: str = ""
    record: bool = False
    editable: bool = False
    url: str = ""
    top_level: tuple[str, ...] = ()


@dataclass(frozen=True)
class Portion:
    """A folder called like the package, right below an entry of sys.path."""

    package: str
    entry: str
    path: str
    regular: bool
    site: bool
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataLink:
    name: str
    path: str
    state: str  # folder, missing, dangling
    target: str | None = None
    empty: bool = False


@dataclass(frozen=True)
class Root:
    """A package's folder: its version, and what its JIT needs."""

    package: str
    root: str
    version: str | None = None
    data: tuple[DataLink, ...] = ()
    aot: tuple[str, ...] = ()


@dataclass(frozen=True)
class Folder:
    path: str
    exists: bool
    mounted: bool
    kind: str = ""
    read_only: bool = False
    root: str = ""  # where it is in its file system; the kernel follows a folder that is moved or removed
    inode: int = 0
    uid: int = 0
    gid: int = 0
    mode: str = ""
    writable: bool = False
    empty: bool = False
    dangling: tuple[str, ...] = ()  # links right below it that lead nowhere


@dataclass(frozen=True)
class EncodingFile:
    path: str
    exists: bool
    sha256: str = ""


@dataclass(frozen=True)
class PthFile:
    path: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartError:
    """A part of the probe that failed."""

    part: str
    error: str
    what: str = ""  # hang, crash, late
    file: str = ""  # of the import hook that did it


@dataclass(frozen=True)
class Python:
    version: str
    executable: str
    path: tuple[str, ...]
    meta_path: tuple[str, ...]


@dataclass(frozen=True)
class Nvidia:
    devices: tuple[str, ...] = ()
    driver: str | None = None


@dataclass(frozen=True)
class System:
    uid: int = 0
    gid: int = 0
    now: float = 0.0
    MemTotal: int = 0
    MemAvailable: int = 0
    MemFree: int = 0
    Cached: int = 0
    SwapTotal: int = 0
    SwapFree: int = 0
    nvidia: Nvidia = Nvidia()


@dataclass(frozen=True)
class Claim:
    """A file that a patch of the image changed: are the patch's lines in what is imported?"""

    patch: str
    package: str
    path: str
    state: str  # there, missing, no-file


@dataclass(frozen=True)
class Promised:
    """A package that is installed at another version than was promised; ``installed`` is empty where it is missing."""

    name: str
    promised: str
    installed: str = ""


@dataclass(frozen=True)
class Promises:
    """Packages that the lock, or the base image, promised."""

    count: int = 0
    differ: tuple[Promised, ...] = ()


@dataclass(frozen=True)
class Software:
    """A version, and the file it was read from."""

    version: str = ""
    path: str = ""
    cuda: str = ""  # of torch: the release that it was built for


@dataclass(frozen=True)
class Tool:
    """A compiler, and the architectures that it lists as supported."""

    name: str
    path: str
    archs: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Cuda:
    torch: Software = Software()
    cudnn: Software = Software()
    toolkit: Software = Software()
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML describes it. ``memory`` is in bytes, 0 where it has none of its own."""

    name: str
    capability: str
    driver: str = ""
    memory: int = 0


@dataclass(frozen=True)
class Processes:
    """Compilers of the container that ended without anybody waiting; who is process 1."""

    zombies: tuple[str, ...] = ()
    first: str = ""


@dataclass(frozen=True)
class KnownVariable:
    """What the installed release's own sources contain about a variable that is set."""

    name: str
    package: str
    known: bool = False
    assigned: tuple[str, ...] = ()  # file:line of each place that sets it whatever the user did
    note: str = ""  # a message of the sources that names it and calls it deprecated, renamed or removed
    similar: tuple[str, ...] = ()  # names that the release knows


@dataclass(frozen=True)
class UnknownFlag:
    flag: str
    similar: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flags:
    """The flags of the service against those that the installed vLLM's sources name."""

    folder: str = ""
    read: tuple[str, ...] = ()
    count: int = 0
    asked: int = 0
    unknown: tuple[UnknownFlag, ...] = ()


@dataclass(frozen=True)
class Load:
    """One real load of a vocabulary by openai_harmony, without a network."""

    name: str
    state: str  # loaded, failed, no-harmony
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Binaries:
    """Compiled modules of a mounted checkout that come from a wheel. ``compiled``: same, differs or "" (not known)."""

    source: str
    package: str
    mount: str
    wheel: str
    noted: bool = False  # envgen-install has installed it
    modules: tuple[str, ...] = ()  # the wheel's, unchanged since
    others: tuple[str, ...] = ()  # of an earlier build, or changed
    gone: tuple[str, ...] = ()
    tag: str = ""  # the nearest release's, of the checkout
    compiled: str = ""  # what modules are compiled from, beside that release

    @property
    def release(self) -> str:
        return self.wheel.split("-")[1] if self.wheel.count("-") > 1 else ""


@dataclass(frozen=True)
class Environment:
    """Variables of the container that may be shown outside it."""

    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One document of the probe. ``noise`` counts the bytes that something else printed before it."""

    python: Python
    imports: tuple[Cell, ...] = ()
    scripts: tuple[Script, ...] = ()
    pth: tuple[PthFile, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    portions: tuple[Portion, ...] = ()
    roots: tuple[Root, ...] = ()
    binaries: tuple[Binaries, ...] = ()
    environment: Environment = Environment()
    folders: tuple[Folder, ...] = ()
    encodings: tuple[EncodingFile, ...] = ()
    locked: Promises = Promises()
    protected: Promises = Promises()
    system: System = System()
    cuda: Cuda = Cuda()
    gpus: tuple[Gpu, ...] = ()
    processes: Processes = Processes()
    known: tuple[KnownVariable, ...] = ()
    flags: Flags = Flags()
    defaults: Mapping[str, float] = field(default_factory=dict)  # of the installed vLLM, where its sources tell
    claimed: tuple[Claim, ...] = ()
    loads: tuple[Load, ...] = ()
    errors: tuple[PartError, ...] = ()
    noise: int = 0

    def cells(self, package: str) -> tuple[Cell, ...]:
        """The answers for one package."""
        return tuple(cell for cell in self.imports if cell.package == package)

    @property
    def variables(self) -> Mapping[str, str]:
        return self.environment.values

    @property
    def python_path(self) -> tuple[str, ...]:
        """PYTHONPATH of the container, entry by entry."""
        return tuple(entry for entry in self.variables.get("PYTHONPATH", "").split(":") if entry)


def from_json(data: Mapping[str, Any], *, noise: int = 0) -> Probe:
    """The typed document. Raises ShapeError."""
    probe = bind(Probe, {**data, "noise": noise})
    if any(len(cell.portions) != len(cell.entries) for cell in probe.imports if cell.kind == "namespace"):
        raise ShapeError("a namespace has other entries than portions")
    return probe
