"""The probe's document as frozen, typed facts. What has another shape is refused: it came from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from envgen.doctor.evidence_parts import Cell as Cell
from envgen.doctor.evidence_parts import Claim as Claim
from envgen.doctor.evidence_parts import Cuda as Cuda
from envgen.doctor.evidence_parts import DataLink as DataLink
from envgen.doctor.evidence_parts import Distribution as Distribution
from envgen.doctor.evidence_parts import EncodingFile as EncodingFile
from envgen.doctor.evidence_parts import Flags as Flags
from envgen.doctor.evidence_parts import Folder as Folder
from envgen.doctor.evidence_parts import Gpu as Gpu
from envgen.doctor.evidence_parts import KnownVariable as KnownVariable
from envgen.doctor.evidence_parts import Load as Load
from envgen.doctor.evidence_parts import Nvidia as Nvidia
from envgen.doctor.evidence_parts import PartError as PartError
from envgen.doctor.evidence_parts import PatchedFile as PatchedFile
from envgen.doctor.evidence_parts import Portion as Portion
from envgen.doctor.evidence_parts import Processes as Processes
from envgen.doctor.evidence_parts import Promised as Promised
from envgen.doctor.evidence_parts import Promises as Promises
from envgen.doctor.evidence_parts import PthFile as PthFile
from envgen.doctor.evidence_parts import Python as Python
from envgen.doctor.evidence_parts import Root as Root
from envgen.doctor.evidence_parts import Script as Script
from envgen.doctor.evidence_parts import Software as Software
from envgen.doctor.evidence_parts import System as System
from envgen.doctor.evidence_parts import Tool as Tool
from envgen.doctor.evidence_parts import UnknownFlag as UnknownFlag
from envgen.engine.base import read_json

T = TypeVar("T")
NO_PROMISES, NO_SYSTEM, NO_CUDA, NO_PROCESSES, NO_FLAGS = Promises(), System(), Cuda(), Processes(), Flags()
MARK = b'{"envgen_probe": 1,'


class BadDocument(ValueError):
    """The document isn't one of the probe's."""


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
    variables: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    folders: tuple[Folder, ...] = ()
    encodings: tuple[EncodingFile, ...] = ()
    patched: tuple[PatchedFile, ...] = ()
    locked: Promises = NO_PROMISES
    protected: Promises = NO_PROMISES
    system: System = NO_SYSTEM
    cuda: Cuda = NO_CUDA
    gpus: tuple[Gpu, ...] = ()
    processes: Processes = NO_PROCESSES
    known: tuple[KnownVariable, ...] = ()
    flags: Flags = NO_FLAGS
    claimed: tuple[Claim, ...] = ()
    loads: tuple[Load, ...] = ()
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
    for name, wanted in kind.__annotations__.items():
        if name in data:
            values[name] = _checked(kind, name, wanted, data[name])
        elif not hasattr(kind, name):  # a default is an attribute of the class
            raise BadDocument(f"{kind.__name__} has no {name}")
    return kind(**values)


_NESTED: dict[str, Any] = {
    "tuple[DataLink, ...]": DataLink,
    "tuple[Promised, ...]": Promised,
    "tuple[Tool, ...]": Tool,
    "tuple[UnknownFlag, ...]": UnknownFlag,
    "Nvidia": Nvidia,
    "Software": Software,
}
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
    if wanted in _PLAIN and isinstance(data, _PLAIN[wanted]) and _is_sane(data):
        return _value(data)
    texts = isinstance(data, list) and all(isinstance(one, str) or (one is None and "None" in wanted) for one in data)
    if wanted.startswith("tuple[str") and texts:
        return _value(data)
    raise BadDocument(f"{kind.__name__}.{name} is not {wanted}")


def _is_sane(data: Any) -> bool:
    """No number that nothing can be calculated from."""
    return not isinstance(data, (int, float)) or abs(data) < 1 << 63


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
        data = read_json(stdout[start:].split(b"\n", 1)[0])
    except ValueError as problem:
        raise BadDocument(f"it is cut off or damaged ({problem})") from None
    return from_json(data, noise=start)


def from_json(data: Mapping[str, Any], *, noise: int = 0) -> Probe:
    """The typed document. Raises BadDocument."""
    environment = _mapping(data, "environment")
    variables = _mapping(environment, "values")
    names = environment.get("names", [])
    if not isinstance(names, list):
        raise BadDocument("environment.names is not a list")
    seconds = data.get("seconds", 0)
    if not isinstance(seconds, (int, float)) or not _is_sane(seconds):
        raise BadDocument("seconds is not a number")
    return Probe(
        python=record(Python, data.get("python")),
        imports=_cells(data.get("imports", [])),
        scripts=_records(Script, data.get("scripts", [])),
        pth=_records(PthFile, data.get("pth", [])),
        distributions=_records(Distribution, data.get("distributions", [])),
        portions=_records(Portion, data.get("portions", [])),
        roots=_records(Root, data.get("roots", [])),
        variables=MappingProxyType({_value(str(key)): _value(str(text)) for key, text in variables.items()}),
        names=frozenset(_value(str(name)) for name in names),
        folders=_records(Folder, data.get("folders", [])),
        encodings=_records(EncodingFile, data.get("encodings", [])),
        patched=_records(PatchedFile, data.get("patched", [])),
        locked=record(Promises, data.get("locked", {})),
        protected=record(Promises, data.get("protected", {})),
        system=record(System, data.get("system", {})),
        cuda=record(Cuda, data.get("cuda", {})),
        gpus=_records(Gpu, data.get("gpus", [])),
        processes=record(Processes, data.get("processes", {})),
        known=_records(KnownVariable, data.get("known", [])),
        flags=record(Flags, data.get("flags", {})),
        claimed=_records(Claim, data.get("claimed", [])),
        loads=_records(Load, data.get("loads", [])),
        errors=_records(PartError, data.get("errors", [])),
        noise=noise,
        seconds=float(seconds),
    )


def _cells(data: Any) -> tuple[Cell, ...]:
    cells = _records(Cell, data)
    if any(len(cell.portions) != len(cell.entries) for cell in cells if cell.kind == "namespace"):
        raise BadDocument("a namespace has other entries than portions")
    return cells


def _mapping(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise BadDocument(f"{name} is not a mapping")
    return found
