"""The probe's document as frozen, typed facts. What has another shape is refused: it came from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envgen.binding import ShapeError, bind
from envgen.doctor.evidence_parts import Cell as Cell
from envgen.doctor.evidence_parts import Claim as Claim
from envgen.doctor.evidence_parts import Cuda as Cuda
from envgen.doctor.evidence_parts import DataLink as DataLink
from envgen.doctor.evidence_parts import Defaults as Defaults
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
NO_PROMISES, NO_SYSTEM, NO_CUDA, NO_PROCESSES = Promises(), System(), Cuda(), Processes()
NO_FLAGS, NO_DEFAULTS = Flags(), Defaults()
MARK = b'{"envgen_probe": 1,'


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
    defaults: Defaults = NO_DEFAULTS
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


@dataclass(frozen=True)
class Environment:
    """Variables of the container: the values that may leave it, and the names of all."""

    values: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Timed:
    seconds: float = 0.0


def read_document(stdout: bytes) -> Probe | None:
    """Find the probe's line in what the container printed; None where there is none. Raises ShapeError."""
    start = stdout.rfind(MARK)
    if start < 0:
        return None
    try:
        data = read_json(stdout[start:].split(b"\n", 1)[0])
    except ValueError as problem:
        raise ShapeError(f"it is cut off or damaged ({problem})") from None
    return from_json(data, noise=start)


def from_json(data: Mapping[str, Any], *, noise: int = 0) -> Probe:
    """The typed document. Raises ShapeError."""
    environment = bind(Environment, data.get("environment", {}), "environment")
    return Probe(
        python=bind(Python, data.get("python"), "python"),
        imports=_cells(data),
        scripts=_all(Script, data, "scripts"),
        pth=_all(PthFile, data, "pth"),
        distributions=_all(Distribution, data, "distributions"),
        portions=_all(Portion, data, "portions"),
        roots=_all(Root, data, "roots"),
        variables=environment.values,
        names=environment.names,
        folders=_all(Folder, data, "folders"),
        encodings=_all(EncodingFile, data, "encodings"),
        patched=_all(PatchedFile, data, "patched"),
        locked=bind(Promises, data.get("locked", {}), "locked"),
        protected=bind(Promises, data.get("protected", {}), "protected"),
        system=bind(System, data.get("system", {}), "system"),
        cuda=bind(Cuda, data.get("cuda", {}), "cuda"),
        gpus=_all(Gpu, data, "gpus"),
        processes=bind(Processes, data.get("processes", {}), "processes"),
        known=_all(KnownVariable, data, "known"),
        flags=bind(Flags, data.get("flags", {}), "flags"),
        defaults=bind(Defaults, data.get("defaults", {}), "defaults"),
        claimed=_all(Claim, data, "claimed"),
        loads=_all(Load, data, "loads"),
        errors=_all(PartError, data, "errors"),
        noise=noise,
        seconds=bind(_Timed, data).seconds,
    )


def _all(kind: type[T], data: Mapping[str, Any], name: str) -> tuple[T, ...]:
    found = data.get(name, [])
    if not isinstance(found, list):
        raise ShapeError(f"{name} is not a list")
    return tuple(bind(kind, one, name) for one in found)


def _cells(data: Mapping[str, Any]) -> tuple[Cell, ...]:
    cells = _all(Cell, data, "imports")
    if any(len(cell.portions) != len(cell.entries) for cell in cells if cell.kind == "namespace"):
        raise ShapeError("a namespace has other entries than portions")
    return cells
