"""What `inside/probe/facts.py` answers about a container, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envgen.binding import JsonObject, ShapeError, bind
from envgen.errors import EnvgenError
from envgen.inside import run

PROGRAM = run.Program("probe/facts")
TIMEOUT = 25  # seconds: more than the limits of the probe's own questions together


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

    def __post_init__(self) -> None:
        if self.kind == "namespace" and len(self.portions) != len(self.entries):
            raise ShapeError("a namespace needs an entry for each portion")


@dataclass(frozen=True)
class Script:
    name: str
    package: str
    path: str | None = None
    interpreter: str | None = None
    flags: tuple[str, ...] = ()
    same: bool = False  # the interpreter is `python3`


@dataclass(frozen=True)
class Distribution:
    name: str
    location: str
    metadata: str
    version: str = ""
    editable: bool = False
    url: str = ""


@dataclass(frozen=True)
class RecordedFile:
    """A distribution whose RECORD has a package's file."""

    name: str
    file: str


@dataclass(frozen=True)
class Origins:
    """Where a package should come from: ``home`` in its mount, or a distribution's file."""

    package: str
    home: str = ""
    recorded: tuple[RecordedFile, ...] = ()


@dataclass(frozen=True)
class Starters:
    """What decides before a program: files that change sys.path, and the files of import hooks."""

    # sitecustomize, usercustomize -> file
    customize: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)  # finder -> file


@dataclass(frozen=True)
class DataLink:
    """A folder that a package needs, or the link to it. ``there``: it has something."""

    path: str
    target: str = ""
    there: bool = False


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
    read_only: bool = False
    root: str = ""  # its path in its file system, also after it was moved or removed
    inode: int = 0
    uid: int = 0
    gid: int = 0
    mode: str = ""
    writable: bool = False


@dataclass(frozen=True)
class PthFile:
    path: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartError:
    """A part of the probe that failed."""

    part: str
    error: str


@dataclass(frozen=True)
class PythonFacts:
    version: str
    executable: str
    path: tuple[str, ...]
    meta_path: tuple[str, ...]


@dataclass(frozen=True)
class System:
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Claim:
    """A file that a patch of the image changed, and whether it is still so, and imported."""

    patch: str
    package: str
    path: str
    state: str  # there, changed, gone, not imported


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
class CompilerFacts:
    """A compiler, and the architectures that it lists as supported."""

    name: str
    path: str
    archs: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class CudaFacts:
    tools: tuple[CompilerFacts, ...] = ()


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as nvidia-smi describes it."""

    name: str
    capability: str


@dataclass(frozen=True)
class Binaries:
    """A mounted checkout with compiled modules of a wheel. ``compiled``: their sources against that
    release: same, differs, "" (unknown).
    """

    source: str
    wheel: str
    compiled: str = ""


@dataclass(frozen=True)
class Probe:
    """The probe's document."""

    python: PythonFacts
    imports: tuple[Imported, ...] = ()
    scripts: tuple[Script, ...] = ()
    pth: tuple[PthFile, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    roots: tuple[Root, ...] = ()
    origins: tuple[Origins, ...] = ()
    starters: Starters = Starters()
    binaries: tuple[Binaries, ...] = ()
    # those of the container that the probe tells
    variables: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[FolderFacts, ...] = ()
    locked: Promises = Promises()
    protected: Promises = Promises()
    system: System = System()
    cuda: CudaFacts = CudaFacts()
    gpus: tuple[GpuFacts, ...] = ()
    claimed: tuple[Claim, ...] = ()
    errors: tuple[PartError, ...] = ()

    def cells(self, package: str) -> tuple[Imported, ...]:
        """The answers for one package."""
        return tuple(cell for cell in self.imports if cell.package == package)

    @property
    def python_path(self) -> tuple[str, ...]:
        """The entries of the container's PYTHONPATH."""
        return tuple(entry for entry in self.variables.get("PYTHONPATH", "").split(":") if entry)


def ask(execute: run.Execute, python: str, request: JsonObject) -> Probe | str:
    """Run the probe in a container. A text: why there is no document."""
    try:
        answer = run.ask(execute, python, PROGRAM, request, timeout=TIMEOUT)
        if isinstance(answer, run.NoAnswer):
            return answer.seen
        return bind(Probe, answer)
    except (EnvgenError, ShapeError) as problem:
        return str(problem).splitlines()[0][:300]
