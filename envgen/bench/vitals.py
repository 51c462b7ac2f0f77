"""How a serving container is: its memory, its zombies, its restarts. Looked at before a load and after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from envgen.engine.base import Container, Engine
from envgen.errors import EngineError, ServiceError
from envgen.serve.processes import processes

_GPU = ["nvidia-smi", "--query-compute-apps=used_gpu_memory", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Vitals:
    """``memory``: resident bytes of all its processes. ``gpu_memory``: bytes, None where nvidia-smi doesn't tell."""

    memory: int
    gpu_memory: int | None
    zombies: tuple[str, ...]
    restarts: int
    started_at: str

    def growth(self, before: Vitals) -> int:
        """Bytes more than ``before``, on the machine and on the GPU together."""
        gpu = 0 if self.gpu_memory is None or before.gpu_memory is None else self.gpu_memory - before.gpu_memory
        return self.memory - before.memory + gpu

    def restarted(self, before: Vitals) -> bool:
        """Has its program ended since ``before``, and was it started again?"""
        return (self.restarts, self.started_at) != (before.restarts, before.started_at)


def look(engine: Engine, container_id: str) -> Vitals:
    """Look once. ServiceError when the container doesn't run any more."""
    container = engine.container(container_id)
    if container is None or not container.running:
        name = container.name if container else "the container"
        raise ServiceError(f"{name} does not run any more: {container.state if container else 'it is gone'}")
    found = processes(engine, container_id)
    zombies = tuple(f"{one.name} ({one.pid})" for one in found if one.zombie)
    gpu = None
    with contextlib.suppress(EngineError):
        gpu = parse_gpu_memory(engine.exec(container_id, _GPU, timeout=20).stdout.decode(errors="replace"))
    return Vitals(sum(one.memory for one in found), gpu, zombies, container.restarts, container.started_at)


def alive(engine: Engine, before: Container) -> bool:
    """Does the container's program still run, the same one as ``before``? True when the engine can't be asked."""
    try:
        now = engine.container(before.id)
    except EngineError:
        return True
    return now is not None and now.running and now.started_at == before.started_at


def parse_gpu_memory(text: str) -> int | None:
    """Bytes in what nvidia-smi printed, one number of MiB a line; None where it can't tell ([N/A])."""
    lines = text.split()
    return sum(map(int, lines)) << 20 if lines and all(map(str.isdigit, lines)) else None
