"""A running service: facts about it for a record, and its vitals (memory, zombies, restarts)."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envgen.binding import JsonDict, digest_of
from envgen.deployment import LiveService
from envgen.engine.git import WorkTree
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, ServiceError
from envgen.inside import run
from envgen.profile.flags import parsed
from envgen.profile.model import Profile
from envgen.redact import without_login
from envgen.serve.follow import POLL

PROGRAM = run.Program("inventory")
# What vLLM's log says of the kernels that it chose.
_KERNELS = re.compile(
    r"Using (?:AttentionBackendEnum\.)?\w+(?: attention)? backend|Using '?\w+'? (?:\w+ )?MoE backend"
    r"|(?:Selected|Using) \w*Kernel\w* for \w+|Using \S+ (?:GDN prefill kernel|Mamba SSU backend)"
)
_OF_HOST = ("arch", "cpus", "memory", "version", "kernel")  # not its address or its name
_GPU = ["nvidia-smi", "--query-compute-apps=used_gpu_memory", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Vitals:
    """A container's state. ``memory``: resident bytes of all processes; ``gpu_memory``: bytes
    (None: unknown).
    """

    memory: int
    gpu_memory: int | None
    zombies: tuple[str, ...]
    restarts: int
    started_at: str


@dataclass(frozen=True)
class RunningService(LiveService):
    """A service and its container."""

    container: Container

    def log(self) -> str:
        """All of its log."""
        return self.engine.logs(self.container.id, tail=None)

    def lives(self, seconds: float) -> bool:
        """Whether its program still runs after ``seconds``; True if the engine does not answer."""
        deadline = time.monotonic() + seconds
        try:
            while (now := self.engine.container(self.container.id)) and now.running:
                if now.started_at != self.container.started_at:
                    return False
                if time.monotonic() >= deadline:
                    return True
                time.sleep(POLL)
        except EngineError:
            return True
        return False

    def vitals(self) -> Vitals:
        """Its memory, zombies and restarts. ServiceError if it no longer runs."""
        now = self.engine.container(self.container.id)
        if now is None or not now.running:
            how = f"is {now.state}" if now else "was removed"
            raise ServiceError(f"{self.container.name} no longer runs: it {how}")
        running = self.engine.processes(now.id)
        zombies = tuple(
            f"{process.command} ({process.pid})" for process in running if process.zombie
        )
        gpu = None
        with suppress(EngineError):
            done = self.engine.exec(now.id, _GPU, timeout=20)
            gpu = parse_gpu_memory(done.stdout.decode(errors="replace"))
        memory = sum(process.memory for process in running)
        return Vitals(memory, gpu, zombies, now.restarts, now.started_at)

    def made_of(self) -> JsonDict:
        """Its command and variables, without secrets."""
        secrets = self.deployment.profile.secrets
        document = self.engine.inspect(self.container.id) or {}
        env = {}
        for key, text in self.container.env.items():
            if key not in secrets:
                env[key] = without_login(text)
        return {"flags": document.get("Args") or [], "env": env}

    def settings(self) -> str:
        """A digest of its image, command and variables, without the profiler of a trace."""
        made_of = self.made_of()
        flags = [vars(one) for one in parsed(made_of["flags"]) if one.name != "profiler-config"]
        return digest_of(1, {**made_of, "flags": flags, "image": self.container.image_id})

    def environment(self) -> JsonDict:
        """Image, lock, sources, versions, GPU, variables and flags, without secrets and unknowns."""
        profile = self.deployment.profile
        container = self.container
        root = self.deployment.root
        pins = {
            name: str(source.origin.wheel)
            for name, source in profile.sources.items()
            if source.origin.wheel
        }
        info = self.engine.info()
        image = self.engine.image(container.image_id)
        labels = image.labels if image else {}
        seen = {
            "service": self.name,
            "project": profile.project,
            "profile": profile.name,
            "sources": {**pins, **checkouts(profile, root), "project": commit_of(root)},
            "container": container.name,
            "variant": container.labels.get("dev.envgen.variant", ""),
            "host": {key: getattr(info, key) for key in _OF_HOST},
            "image": image
            and {
                "name": next(iter(image.repo_tags), ""),
                "id": image.id,
                "digest": next(iter(image.repo_digests), ""),
            },
            **{key: labels.get(f"dev.envgen.{key}", "") for key in ("lock", "render")},
            **self.made_of(),
        }
        with suppress(EnvgenError):
            seen["kernels"] = kernels(self.log())
        with suppress(EnvgenError):
            execute = run.in_container(self.engine, container.id)
            inside = run.ask(execute, "python3", PROGRAM, {}, timeout=60)
            if not isinstance(inside, run.NoAnswer):
                seen |= {key: inside.get(key) for key in ("versions", "gpu", "inputs")}
        return {key: value for key, value in seen.items() if value not in (None, "", {}, [])}


def kernels(log: str) -> list[str]:
    """What a log says of the chosen kernels, each once."""
    return list(dict.fromkeys(_KERNELS.findall(log)))[:16]


def checkouts(profile: Profile, root: Path) -> dict[str, str]:
    """The commit of each mounted source."""
    return {name: commit_of(folder.below(root)) for name, folder in profile.checkouts.items()}


def commit_of(folder: Path) -> str:
    """The commit of a checkout, with ``-dirty`` if files differ from it; "" where it can't be read."""
    with suppress(EnvgenError, OSError):
        tree = WorkTree(folder.resolve())
        if head := tree.head:
            return head + "-dirty" * bool(tree.edited(head))
    return ""


def parse_gpu_memory(text: str) -> int | None:
    """Bytes in the output of nvidia-smi, which has a number of MiB per line; None for [N/A]."""
    lines = text.split()
    if not lines or not all(map(str.isdigit, lines)):
        return None
    return sum(map(int, lines)) << 20
