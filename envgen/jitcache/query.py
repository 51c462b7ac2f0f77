"""What a user asks for: module names or globs, narrowed by version and arch."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.errors import RefusedError, UsageError
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.names import check_request
from envgen.profile.values import CudaArch, CudaArchList

NO_ARCH = "none"  # the layout without an arch folder: no GPU and FLASHINFER_CUDA_ARCH_LIST unset


@dataclass(frozen=True)
class Query:
    """``archs`` are folder names as FlashInfer writes them; None: all of them."""

    patterns: tuple[str, ...] = ()
    version: str = ""
    archs: tuple[str, ...] | None = None

    def request(self, operation: str, root: str) -> dict[str, object]:
        """The agent's JSON request."""
        archs = None if self.archs is None else list(self.archs)
        narrowed = {"patterns": list(self.patterns), "version": self.version, "archs": archs}
        return {"operation": operation, "root": root, **narrowed}


def make_query(patterns: tuple[str, ...] = (), version: str | None = None, arch: str | None = None) -> Query:
    """Build a query from a command line. RefusedError for what could lead out of the cache, before Docker is asked."""
    archs = None if arch is None else arch_folders(arch)
    query = Query(patterns, version or "", archs)
    try:
        check_request(list(patterns), query.version, None if archs is None else list(archs))
    except Fault as fault:
        raise RefusedError(fault.message, hint="name a module as `envgen cache list` shows it") from None
    if version == "":
        raise UsageError("--version is empty", hint="write it as `envgen cache list` shows it: --version 0.5.3")
    return query


def arch_folders(text: str) -> tuple[str, ...]:
    """The cache folders that an arch may mean: ``12.1a`` and ``121a`` are the same; ``none`` is the layout without one.

    FlashInfer up to 0.6.6 keeps ``12.1`` as ``121``; later releases make ``121a`` of it and ``120f`` of ``12.0``.
    """
    if text == NO_ARCH:
        return ("",)
    if not text:
        raise UsageError("--arch is empty", hint="write it like 12.1a or 121a; `none` is the layout without one")
    try:
        parsed = CudaArchList.parse(text)
    except ValueError:
        return (text,)
    named = [CudaArchList(tuple({_normal(arch, twelve): None for arch in parsed.archs})) for twelve in ("f", "a")]
    return tuple(dict.fromkeys([parsed.folder, *(one.folder for one in named)]))


def _normal(arch: CudaArch, twelve: str) -> CudaArch:
    """What FlashInfer from 0.6.7 on makes of an arch without a suffix. ``twelve``: of 12.0; ``a`` is for CUDA 12.8."""
    if arch.suffix or arch.major < 9:
        return arch
    return CudaArch(arch.major, arch.minor, twelve if (arch.major, arch.minor) == (12, 0) else "a")


def seconds(text: str) -> float:
    """An age such as ``30d``, ``12h``, ``45m``, ``90s``. UsageError for anything else."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    number, unit = text[:-1], text[-1:]
    if unit in units and number.isascii() and number.isdigit() and len(number) < 10:
        return float(number) * units[unit]
    raise UsageError(f"{text!r} is not an age", hint="write it like 30d, 12h or 45m")
