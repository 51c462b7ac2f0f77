"""Can the profile's GPU run what a library holds? The rules of CUDA's compatibility, applied to what the agent read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envgen.inside.jit.libraries import Assembler, Library, parse_arch, runs


@dataclass(frozen=True)
class Audit:
    """The answer of ``audit``. ``version`` = the FlashInfer that is imported."""

    root: str
    libraries: tuple[Library, ...]
    version: str
    assemblers: tuple[Assembler, ...]
    place: str = ""


@dataclass(frozen=True)
class Finding:
    """What one library is for this profile's GPU: ``ok``, ``ptx`` (compiled when loaded), ``error`` or ``none``."""

    library: Library
    verdict: str
    message: str


def runs_on(code: str, major: int, minor: int) -> bool:
    """``sm_90`` runs on every 9.x from 9.0 on; ``sm_121a`` on 12.1 alone; ``sm_120f`` on 12.0 and later of its family;
    PTX without a suffix on everything as new."""
    kind, _, number = code.partition("_")
    made = parse_arch(number)
    if made is not None and kind == "compute" and not made[2]:
        return made[:2] <= (major, minor)
    return kind in ("sm", "compute") and runs(number, f"{major}{minor}")


def judge(library: Library, archs: Iterable[tuple[int, int]]) -> Finding:
    """One library against every GPU of the profile."""
    wanted, held = sorted(set(archs)), ", ".join(library.archs)
    if library.problem:
        return Finding(library, "error", library.problem)
    if not library.archs:
        return Finding(library, "none", "holds no GPU code")
    unable = [f"{gpu[0]}.{gpu[1]}" for gpu in wanted if not any(runs_on(code, *gpu) for code in library.archs)]
    if unable:
        return Finding(library, "error", f"holds {held}: nothing that a GPU of {', '.join(unable)} can run")
    machine = [code for code in library.archs if code.startswith("sm_")]
    if not all(any(runs_on(code, *gpu) for code in machine) for gpu in wanted):
        return Finding(library, "ptx", f"holds {held}: compiled by the driver when it is loaded")
    return Finding(library, "ok", held)


def findings(audit: Audit, archs: Sequence[tuple[int, int]], folders: Sequence[str]) -> list[Finding]:
    """All libraries that this environment uses: of the cache those of its own version and archs."""
    return [
        judge(library, archs)
        for library in audit.libraries
        if library.owner != "cache"
        or (library.arch in folders and library.version == (audit.version or library.version))
    ]
