"""Findings, checks, and the facts that checks judge. A check is a pure function of one `Context`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from envgen.binding import ShapeError, bind
from envgen.deployment import Deployment
from envgen.engine.box import Box
from envgen.engine.values import Container, EngineInfo, Image
from envgen.errors import Problem
from envgen.explain import Explanation
from envgen.profile.model import Profile
from envgen.serve.ended import Ended
from envgen.text import visible

CMA = 1 << 30  # bytes of CmaFree; a Spark whose kernel has Kexec HandOver on has 9.3 GiB (NVIDIA/NV-Kernels#591)
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


class Where(NamedLevel):
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
        # A hint of another part may name a file with a line break: still one line, with the break as an escape.
        object.__setattr__(self, "text", visible(self.text))


@dataclass(frozen=True)
class Finding:
    """A check's result. Above INFO it has ``seen``, ``expected`` and ``remedy``."""

    severity: Severity
    title: str
    seen: str = ""
    expected: str = ""
    remedy: Remedy | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""  # set by the runner, as are the next two
    where: Where = Where.HOST
    node: str = ""

    @property
    def case(self) -> str:
        """The case of the check, as docs/doctor.md describes it; not empty above INFO."""
        return str(self.evidence.get("case", ""))


def ok(title: str, **evidence: Any) -> Finding:
    return Finding(Severity.OK, title, evidence=evidence)


def info(title: str, seen: str = "", **evidence: Any) -> Finding:
    return Finding(Severity.INFO, title, seen, evidence=evidence)


def warning(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.WARNING, title, seen, expected, remedy, evidence)


def error(title: str, seen: str, expected: str, remedy: Remedy, **evidence: Any) -> Finding:
    return Finding(Severity.ERROR, title, seen, expected, remedy, evidence)


@dataclass(frozen=True)
class Foreign:
    """Files of root below a folder. ``name``: the source or cache; ``examples``: some of the paths."""

    name: str
    folder: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """Facts about this machine. None: unknown or, for a version, not installed."""

    disk_path: str = ""
    disk_free: int | None = None
    buildx: str | None = ""
    compose: str | None = ""
    busy_ports: tuple[tuple[int, str], ...] = ()  # (port, what uses it)
    limits: Mapping[str, int] = field(default_factory=dict)  # cgroup that holds containers -> bytes that it may use


@dataclass(frozen=True)
class Trouble:
    """Why the probe is missing: a sentence, and what was seen."""

    title: str
    seen: str


@dataclass(frozen=True)
class Context:
    """The input of all checks. A missing part is None, and its checks are skipped."""

    profile: Profile
    service: str  # the service that is examined, or would be started
    env: Mapping[str, str] = field(default_factory=dict)  # the profile's variables for that service
    digest: str = ""  # of the image that the profile renders now; "": unknown
    outdated: tuple[str, ...] = ()  # what has changed since the image was built, if known
    project_file: str = "envgen.yaml"
    engine: EngineInfo | None = None
    host: Host | None = None
    box: Box | None = None  # of this machine; None: the engine is on another one
    image: Image | None = None
    container: Container | None = None
    probe: Probe | None = None
    trouble: Trouble | None = None
    running: tuple[Running, ...] = ()  # of each running container
    tried: Mapping[str, Tried] = field(default_factory=dict)  # package -> its import in the container
    ended: Mapping[str, Ended] = field(default_factory=dict)  # container ID -> how its program ended last
    notices: Mapping[str, tuple[Explanation, ...]] = field(default_factory=dict)  # container's name -> in its log
    others: tuple[Container, ...] = ()  # containers of the profile's other services, running or not
    checkouts: Mapping[str, str] = field(default_factory=dict)  # source -> folder on this machine
    inodes: Mapping[str, int] = field(default_factory=dict)  # source -> inode of that folder; 0: no such folder
    build_needs: frozenset[str] = frozenset()  # build requirements of mounted checkouts
    unpatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # source -> patches that its checkout lacks
    foreign: tuple[Foreign, ...] = ()  # files of root in checkouts and cache folders
    refused: tuple[Problem, ...] = ()  # why `envgen up` would refuse, except what other checks report
    weights: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)  # service with a model -> its problems
    effective: Profile | None = None  # as Compose understands it with the profile's own file; None: it can't
    own_changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # service -> what that file changes
    own_trouble: str = ""  # what Compose has against that file
    is_unlocked: bool = False  # a production profile without a lock, which a build needs
    is_temporary: bool = False  # started by `--run`
    asked: tuple[float, float] | None = None  # this machine's clock before and after the probe ran

    @property
    def inside(self) -> Probe:
        """The probe's facts, for checks that need them."""
        assert self.probe is not None
        return self.probe


Findings = Generator[Finding, None, Finding | None]
Judge = Callable[..., Findings | list[Finding] | Finding | None]


@dataclass(frozen=True)
class Check:
    """A check. Its judge yields findings; the returned one is used if there are none (None: nothing to judge).

    ``needs``: the field of the context that it requires and gets as its second argument. docs/doctor.md describes each
    finding.
    """

    id: str
    where: Where
    judge: Judge
    needs: str = ""

    def __call__(self, context: Context) -> list[Finding]:
        """The findings; none if the required field is None."""
        part = getattr(context, self.needs) if self.needs else None
        if self.needs and part is None:
            return []
        judged = self.judge(context, part) if self.needs else self.judge(context)
        if isinstance(judged, list):
            return judged
        findings: list[Finding] = []
        while isinstance(judged, Generator):
            try:
                findings.append(next(judged))
            except StopIteration as end:
                judged = end.value
        return findings if findings or judged is None else [judged]


def check(id: str, where: Where, needs: str = "") -> Callable[[Judge], Check]:
    """Decorator: make a check of a judge."""
    return lambda judge: Check(id, where, judge, needs)


@dataclass(frozen=True)
class Subject:
    """What the user wants to examine."""

    deployment: Deployment
    service: str | None = None
    may_start: bool = False  # start a container if none runs
    project_file: str = "envgen.yaml"
    load: bool = False  # also load the vocabularies, which takes a second


@dataclass(frozen=True)
class Imported:
    """What Python imports as one package, started in one way from one folder."""

    package: str
    how: str  # -c, -m, -P, the name of a console script, or `script` where none is installed
    folder: str
    kind: str  # regular, namespace, module, missing, error, no-folder
    origin: str = ""
    portions: tuple[str, ...] = ()
    entry: str | None = None  # the entry of sys.path that decided; "" is the current folder
    entries: tuple[str | None, ...] = ()  # ``entry`` of each portion of a namespace
    finder: str = ""
    error: str = ""


@dataclass(frozen=True)
class Tried:
    """An import of a package. ``problem``: how it failed; ``untried``: why it was not tried, or not to its end."""

    file: str = ""
    version: str = ""
    seconds: float = 0.0
    problem: str = ""
    untried: str = ""


@dataclass(frozen=True)
class Script:
    name: str
    package: str
    path: str | None = None
    interpreter: str | None = None
    flags: tuple[str, ...] = ()
    same: bool = False  # the interpreter is `python3`
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
    """A folder with the package's name directly below an entry of sys.path."""

    package: str
    entry: str
    path: str
    regular: bool
    site: bool
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedFile:
    """A distribution whose RECORD has a package's file. ``size``: as recorded, in bytes; 0: unknown."""

    name: str
    version: str
    file: str
    metadata: str
    size: int = 0
    exists: bool = False


@dataclass(frozen=True)
class FileState:
    """A file that is, or should be, imported as a package. ``lacks``: names that every release has."""

    file: str
    size: int = 0
    lacks: tuple[str, ...] = ()
    broken: str = ""  # why Python can't compile it


@dataclass(frozen=True)
class Origins:
    """Where a package should come from: ``home`` in its mount, or a distribution's file."""

    package: str
    home: str = ""
    recorded: tuple[RecordedFile, ...] = ()
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True)
class Starters:
    """What decides before a program: files that change sys.path, the files of import hooks, and `python3` on PATH."""

    customize: Mapping[str, str] = field(default_factory=dict)  # sitecustomize, usercustomize -> file
    hooks: Mapping[str, str] = field(default_factory=dict)  # finder -> file
    program: str = ""
    wrapper: str = ""  # the program, if it is a script


@dataclass(frozen=True)
class DataLink:
    name: str
    path: str
    state: str  # folder, missing, dangling
    target: str | None = None
    empty: bool = False


@dataclass(frozen=True)
class Root:
    """A package's folder: its version, and the folders that its JIT needs."""

    package: str
    root: str
    version: str | None = None
    data: tuple[DataLink, ...] = ()
    aot: tuple[str, ...] = ()


@dataclass(frozen=True)
class FolderFacts:
    path: str
    exists: bool
    mounted: bool
    kind: str = ""
    read_only: bool = False
    root: str = ""  # its path in its file system, also after it was moved or removed
    inode: int = 0
    uid: int = 0
    gid: int = 0
    mode: str = ""
    writable: bool = False
    empty: bool = False
    dangling: tuple[str, ...] = ()  # dangling links directly below it


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
class PythonFacts:
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
    """A file that a patch of the image changed, and whether it is still so, and imported."""

    patch: str
    package: str
    path: str
    state: str  # there, changed, gone, not imported


@dataclass(frozen=True)
class SharedModule:
    """A module that several distributions own; ``winner``: the one whose file is there, "" if it is nobody's."""

    path: str
    owners: tuple[str, ...]
    winner: str


@dataclass(frozen=True)
class Promised:
    """A package with another version than promised; ``installed`` is "" if it is missing."""

    name: str
    promised: str
    installed: str = ""
    location: str = ""  # the entry of sys.path that has it


@dataclass(frozen=True)
class Promises:
    """Packages that the lock or the base image promised."""

    count: int = 0
    differ: tuple[Promised, ...] = ()


@dataclass(frozen=True)
class Software:
    """A version, and the file it was read from."""

    version: str = ""
    path: str = ""
    cuda: str = ""  # the CUDA release that torch was built for


@dataclass(frozen=True)
class CompilerFacts:
    """A compiler, and the architectures that it lists as supported."""

    name: str
    path: str
    archs: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class CudaFacts:
    torch: Software = Software()
    cudnn: Software = Software()
    toolkit: Software = Software()
    tools: tuple[CompilerFacts, ...] = ()


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as NVML describes it. ``memory`` in bytes; 0: it shares the machine's."""

    name: str
    capability: str
    driver: str = ""
    memory: int = 0


@dataclass(frozen=True)
class Processes:
    """Zombie compilers in the container, and its process 1."""

    zombies: tuple[str, ...] = ()
    first: str = ""


@dataclass(frozen=True)
class UnknownFlag:
    flag: str
    similar: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flags:
    """The flags of the service that the sources of the installed vLLM do not have."""

    folder: str = ""
    read: tuple[str, ...] = ()
    count: int = 0
    asked: int = 0
    unknown: tuple[UnknownFlag, ...] = ()


@dataclass(frozen=True)
class VocabularyLoad:
    """A vocabulary loaded by openai_harmony without a network."""

    name: str
    state: str  # loaded, failed, no-harmony
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Binaries:
    """Compiled modules of a mounted checkout that come from a wheel."""

    source: str
    package: str
    mount: str
    wheel: str
    noted: bool = False  # envgen-install has installed it
    modules: tuple[str, ...] = ()  # unchanged modules of the wheel
    others: tuple[str, ...] = ()  # of an earlier build, or changed
    gone: tuple[str, ...] = ()
    tag: str = ""  # of the checkout's nearest release
    compiled: str = ""  # the checkout's sources of modules against that release: same, differs, "" (unknown)

    @property
    def release(self) -> str:
        return self.wheel.split("-")[1] if self.wheel.count("-") > 1 else ""


@dataclass(frozen=True)
class Environment:
    """The container's variables, without secrets."""

    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """The probe's document. ``noise``: bytes that something else printed before it."""

    python: PythonFacts
    imports: tuple[Imported, ...] = ()
    scripts: tuple[Script, ...] = ()
    pth: tuple[PthFile, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    portions: tuple[Portion, ...] = ()
    roots: tuple[Root, ...] = ()
    origins: tuple[Origins, ...] = ()
    starters: Starters = Starters()
    binaries: tuple[Binaries, ...] = ()
    environment: Environment = Environment()
    folders: tuple[FolderFacts, ...] = ()
    encodings: tuple[EncodingFile, ...] = ()
    locked: Promises = Promises()
    protected: Promises = Promises()
    system: System = System()
    cuda: CudaFacts = CudaFacts()
    gpus: tuple[GpuFacts, ...] = ()
    processes: Processes = Processes()
    flags: Flags = Flags()
    defaults: Mapping[str, float] = field(default_factory=dict)  # of the installed vLLM's flags
    claimed: tuple[Claim, ...] = ()
    shared: tuple[SharedModule, ...] = ()
    loads: tuple[VocabularyLoad, ...] = ()
    errors: tuple[PartError, ...] = ()
    noise: int = 0

    def cells(self, package: str) -> tuple[Imported, ...]:
        """The answers for one package."""
        return tuple(cell for cell in self.imports if cell.package == package)

    def origin_of(self, package: str) -> Origins:
        """Where a package should come from."""
        return next((one for one in self.origins if one.package == package), Origins(package))

    @property
    def variables(self) -> Mapping[str, str]:
        return self.environment.values

    @property
    def python_path(self) -> tuple[str, ...]:
        """The entries of the container's PYTHONPATH."""
        return tuple(entry for entry in self.variables.get("PYTHONPATH", "").split(":") if entry)


@dataclass(frozen=True)
class Mapped:
    """A library of a package that a process has mapped. ``gone``: the file was replaced since; ``changed``: seconds
    since 1970."""

    package: str
    folder: str
    file: str
    gone: bool = False
    changed: float = 0.0


@dataclass(frozen=True)
class PathChange:
    """What a program's code does to sys.path: puts ``entry`` ``first``, or something ``unknown``."""

    what: str
    entry: str
    file: str = ""  # "": the text of `-c`
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.file else "its own code (-c)"


@dataclass(frozen=True)
class RecordedBy(RecordedFile):
    """A distribution of ``package`` that a process finds."""

    package: str = ""


@dataclass(frozen=True)
class PythonProcess:
    """A Python program of a container. ``cells``: what a program that is started like it imports; none where its title
    hides how it was started (vLLM's workers). ``started``: seconds since 1970."""

    pid: int
    started: float
    title: str
    top: int = 1  # its topmost ancestor: process 1, or what `docker exec` started
    folder: str = ""
    executable: str = ""
    how: str = ""  # -c, -m, script, stdin
    target: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    mapped: tuple[Mapped, ...] = ()
    cells: tuple[Imported, ...] = ()
    changes: tuple[PathChange, ...] = ()
    recorded: tuple[RecordedBy, ...] = ()
    named: tuple[str, ...] = ()  # packages that its code names in an import
    error: str = ""


@dataclass(frozen=True)
class Home:
    """A mounted package's own file."""

    package: str
    file: str = ""


@dataclass(frozen=True)
class Age:
    """The Python file of a package's folder that changed last. ``changed``: seconds since 1970; ``gone``: deleted."""

    package: str
    folder: str
    file: str
    changed: float
    gone: bool = False


@dataclass(frozen=True)
class Running:
    """The Python programs of a container. ``hidden``: those of another user."""

    service: str
    container: Container | None = None
    processes: tuple[PythonProcess, ...] = ()
    hidden: int = 0
    homes: tuple[Home, ...] = ()
    ages: tuple[Age, ...] = ()
    trouble: str = ""  # why they could not be looked at


def from_json(data: Mapping[str, Any], *, noise: int = 0) -> Probe:
    """Bind the probe's document. Raises ShapeError."""
    probe = bind(Probe, {**data, "noise": noise})
    if any(len(cell.portions) != len(cell.entries) for cell in probe.imports if cell.kind == "namespace"):
        raise ShapeError("a namespace needs an entry for each portion")
    return probe
