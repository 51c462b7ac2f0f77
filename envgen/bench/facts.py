"""Facts about a serving container for a record, and its vitals (memory, zombies, restarts)."""

from __future__ import annotations

import contextlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen import __version__
from envgen.engine.client import Engine
from envgen.engine.git import WorkTree
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, ServiceError
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.redact import without_login
from envgen.serve.crash import processes
from envgen.text import counted

PROGRAM = run.Program("inventory")
# What vLLM's log says of the kernels that it chose.
_KERNELS = re.compile(
    r"Using (?:AttentionBackendEnum\.)?\w+(?: attention)? backend|Using '?\w+'? (?:\w+ )?MoE backend"
    r"|(?:Selected|Using) \w*Kernel\w* for \w+|Using \S+ (?:GDN prefill kernel|Mamba SSU backend)"
)
_GPU = ["nvidia-smi", "--query-compute-apps=used_gpu_memory", "--format=csv,noheader,nounits"]


def collect(
    engine: Engine | None, container: Container | None, profile: Profile | None, root: Path | None, service: str
) -> dict[str, Any]:
    """The environment of a run: image, lock, sources, versions, GPU, variables and flags, without secrets and
    unknowns."""
    found: dict[str, Any] = {"envgen": __version__, "service": service}
    if profile is not None:
        origins = {name: source.origin.pypi or source.origin.wheel for name, source in profile.sources.items()}
        pins = {name: str(pin) for name, pin in origins.items() if pin is not None}
        found |= {"project": profile.project, "profile": profile.name,
                  "sources": {**pins, **(checkouts(profile, root) if root else {})}}  # fmt: skip
    if engine is not None and container is not None:
        found |= _of_container(engine, container)
        hidden = profile.secrets if profile else ()
        found["env"] = {name: without_login(value) for name, value in container.env.items() if name not in hidden}
    return {key: value for key, value in found.items() if value not in (None, "", {}, [])}


def _of_container(engine: Engine, container: Container) -> dict[str, Any]:
    found: dict[str, Any] = {"container": container.name, "variant": container.labels.get("dev.envgen.variant", "")}
    info = engine.info()
    found["host"] = {"arch": info.arch, "cpus": info.cpus, "memory": info.memory, "engine": info.version}
    if info.local:
        found["host"]["kernel"] = platform.release()
    if image := engine.image(container.image_id):
        found["image"] = {"name": next(iter(image.repo_tags), ""), "id": image.id,
                          "digest": next(iter(image.repo_digests), "")}  # fmt: skip
        found |= {key: image.labels.get(f"dev.envgen.{key}", "") for key in ("lock", "render")}
    argv = (engine.inspect(container.id) or {}).get("Args")
    if isinstance(argv, list):
        found["flags"] = [str(word) for word in argv]
    with contextlib.suppress(EnvgenError):
        found["kernels"] = kernels(engine.logs(container.id, tail=None))
    with contextlib.suppress(EnvgenError):
        inside = run.ask(run.in_container(engine, container.id), "python3", PROGRAM, {}, timeout=60)
        if not isinstance(inside, run.NoAnswer):
            found |= {key: inside.get(key) for key in ("versions", "gpu", "inputs")}
            found["tuning"] = {
                one["place"]: f"{counted(one['results'], 'result')}, sha256 {one['digest']}"
                for one in inside.get("tuning") or ()
            }
    return found


def kernels(log: str) -> list[str]:
    """What a log says of the chosen kernels, each once."""
    return list(dict.fromkeys(_KERNELS.findall(log)))[:16]


def checkouts(profile: Profile, root: Path) -> dict[str, str]:
    """The commit of each mounted source, with ``-dirty`` if files differ from it."""
    found = {}
    for name, source in profile.mounted_sources.items():
        with contextlib.suppress(EnvgenError, OSError):  # not a git checkout, or one that cannot be read
            tree = WorkTree((root / Path(str(source.origin.checkout)).expanduser()).resolve())
            if head := tree.head:
                found[name] = head + ("-dirty" if tree.edited(head) else "")
    return found


# --- memory, zombies, restarts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vitals:
    """A container's state. ``memory``: resident bytes of all processes; ``gpu_memory``: bytes (None: unknown)."""

    memory: int
    gpu_memory: int | None
    zombies: tuple[str, ...]
    restarts: int
    started_at: str

    def growth(self, before: Vitals) -> int:
        """The growth of memory and GPU memory since ``before``, in bytes."""
        gpu = 0 if self.gpu_memory is None or before.gpu_memory is None else self.gpu_memory - before.gpu_memory
        return self.memory - before.memory + gpu

    def restarted(self, before: Vitals) -> bool:
        """Whether the container was restarted since ``before``."""
        return (self.restarts, self.started_at) != (before.restarts, before.started_at)


def look(engine: Engine, container_id: str) -> Vitals:
    """The container's vitals. ServiceError if it no longer runs."""
    container = engine.container(container_id)
    if container is None or not container.running:
        name = container.name if container else "the container"
        raise ServiceError(f"{name} no longer runs: it {f'is {container.state}' if container else 'was removed'}")
    found = processes(engine, container_id)
    zombies = tuple(f"{process.name} ({process.pid})" for process in found if process.zombie)
    gpu = None
    with contextlib.suppress(EngineError):
        gpu = parse_gpu_memory(engine.exec(container_id, _GPU, timeout=20).stdout.decode(errors="replace"))
    return Vitals(sum(process.memory for process in found), gpu, zombies, container.restarts, container.started_at)


def parse_gpu_memory(text: str) -> int | None:
    """Bytes in the output of nvidia-smi, which has a number of MiB per line; None for [N/A]."""
    lines = text.split()
    return sum(map(int, lines)) << 20 if lines and all(map(str.isdigit, lines)) else None
