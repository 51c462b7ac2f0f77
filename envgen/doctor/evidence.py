"""The probe's document as frozen, typed facts. What has another shape is refused: it came from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")
MARK = b'{"envgen_probe": 1,'
NOTHING: Mapping[str, Any] = MappingProxyType({})


class BadDocument(ValueError):
    """The document isn't one of the probe's."""


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
    real: str = ""
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
    """A package's folder: the version that it tells, and what its JIT needs."""

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
    uid: int = 0
    gid: int = 0
    mode: str = ""
    writable: bool = False
    empty: bool = False


@dataclass(frozen=True)
class EncodingFile:
    path: str
    exists: bool
    sha256: str = ""
    size: int = 0


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
    prefix: str
    base_prefix: str
    path: tuple[str, ...]
    meta_path: tuple[str, ...]
    home: str
    folder: str
    safe_path: bool = False


@dataclass(frozen=True)
class Nvidia:
    devices: tuple[str, ...] = ()
    smi: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class System:
    uid: int = 0
    gid: int = 0
    cpus: int = 0
    usable_cpus: int = 0
    machine: str = ""
    now: float = 0.0
    MemTotal: int = 0
    MemAvailable: int = 0
    SwapTotal: int = 0
    SwapFree: int = 0
    memory_limit: str = ""
    nvidia: Nvidia = Nvidia()


@dataclass(frozen=True)
class PatchedFile:
    """A file that a patch changed when the image was built."""

    package: str
    path: str
    state: str  # same, changed, missing


@dataclass(frozen=True)
class Probe:
    """One document of the probe. ``noise`` counts the bytes that something else printed before it."""

    python: Python
    imports: tuple[Cell, ...]
    scripts: tuple[Script, ...] = ()
    pth: tuple[PthFile, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    portions: tuple[Portion, ...] = ()
    roots: tuple[Root, ...] = ()
    variables: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    names: frozenset[str] = frozenset()
    folders: tuple[Folder, ...] = ()
    encodings: tuple[EncodingFile, ...] = ()
    patched: tuple[PatchedFile, ...] = ()
    system: System = System()
    errors: tuple[PartError, ...] = ()
    noise: int = 0
    seconds: float = 0.0

    def cells(self, package: str) -> tuple[Cell, ...]:
        """The answers for one package."""
        return tuple(cell for cell in self.imports if cell.package == package)

    @property
    def python_path(self) -> tuple[str, ...]:
        """PYTHONPATH of the container, entry by entry."""
        return tuple(entry for entry in self.variables.get("PYTHONPATH", "").split(":") if entry)


def _value(value: Any) -> Any:
    """Lists become tuples all the way down; texts lose what no terminal can show."""
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def record(kind: type[T], data: Any) -> T:
    """Build one of the classes above from plain data. Unknown keys are left out; types are checked."""
    if not isinstance(data, dict):
        raise BadDocument(f"{kind.__name__} is no mapping")
    values: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in data:
            values[item.name] = _checked(kind, item.name, str(item.type), data[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise BadDocument(f"{kind.__name__} has no {item.name}")
    return kind(**values)


_NESTED: dict[str, Any] = {"tuple[DataLink, ...]": DataLink, "Nvidia": Nvidia}
_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}


def _checked(kind: type[Any], name: str, wanted: str, data: Any) -> Any:
    if wanted in _NESTED:
        nested = _NESTED[wanted]
        return tuple(record(nested, one) for one in data) if isinstance(data, list) else record(nested, data)
    if wanted in _PLAIN and isinstance(data, _PLAIN[wanted]):
        return _value(data)
    texts = isinstance(data, list) and all(isinstance(one, str) or (one is None and "None" in wanted) for one in data)
    if wanted.startswith("tuple[str") and texts:
        return _value(data)
    raise BadDocument(f"{kind.__name__}.{name} is not {wanted}")


def _records(kind: type[T], data: Any) -> tuple[T, ...]:
    if not isinstance(data, list):
        raise BadDocument(f"no list of {kind.__name__}")
    return tuple(record(kind, one) for one in data)


def read_document(stdout: bytes) -> Probe | None:
    """Find the probe's line in what the container printed; None where there is none. Raises BadDocument."""
    start = stdout.rfind(MARK)
    if start < 0:
        return None
    try:
        data = json.loads(stdout[start:].split(b"\n", 1)[0])
    except ValueError as problem:
        raise BadDocument(f"it ends in the middle ({problem})") from None
    return from_json(data, noise=start)


def from_json(data: Mapping[str, Any], *, noise: int = 0) -> Probe:
    """The typed document. Raises BadDocument."""
    environment = data.get("environment", {})
    variables = environment.get("values", {}) if isinstance(environment, dict) else {}
    names = environment.get("names", []) if isinstance(environment, dict) else []
    return Probe(
        python=record(Python, data.get("python")),
        imports=_records(Cell, data.get("imports", [])),
        scripts=_records(Script, data.get("scripts", [])),
        pth=_records(PthFile, data.get("pth", [])),
        distributions=_records(Distribution, data.get("distributions", [])),
        portions=_records(Portion, data.get("portions", [])),
        roots=_records(Root, data.get("roots", [])),
        variables=MappingProxyType({str(key): _value(str(text)) for key, text in variables.items()}),
        names=frozenset(str(name) for name in names),
        folders=_records(Folder, data.get("folders", [])),
        encodings=_records(EncodingFile, data.get("encodings", [])),
        patched=_records(PatchedFile, data.get("patched", [])),
        system=record(System, data.get("system", {})),
        errors=_records(PartError, data.get("errors", [])),
        noise=noise,
        seconds=float(data.get("seconds", 0)),
    )
