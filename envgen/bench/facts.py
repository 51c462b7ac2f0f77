"""What was measured: image, lock, sources, versions, GPU, variables and flags of a running service, for a run's record.

Nothing here fails for what can't be learned: the key is then left out. The record leaves out secrets.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envgen import __version__
from envgen.bench.compare import flags
from envgen.engine.base import Container, Engine
from envgen.engine.git import WorkTree
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.redact import without_login

PROGRAM = run.Program(("server_facts",))


def collect(
    engine: Engine | None, container: Container | None, profile: Profile | None, root: Path | None, service: str
) -> dict[str, Any]:
    """The environment of a run, by the keys that docs/benchmarking.md names. What isn't given is left out."""
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
    if info.endpoint.startswith("unix://"):
        found["host"]["kernel"] = platform.release()
    if image := engine.image(container.image_id):
        found["image"] = {"name": next(iter(image.repo_tags), ""), "id": image.id,
                          "digest": next(iter(image.repo_digests), "")}  # fmt: skip
        found |= {key: image.labels.get(f"dev.envgen.{key}", "") for key in ("lock", "render")}
    argv = (engine.inspect(container.id) or {}).get("Args")
    if isinstance(argv, list):
        found["flags"] = [str(word) for word in argv]
        found["nodes"] = nodes(found["flags"])
    with contextlib.suppress(EnvgenError):
        inside = run.ask(run.in_container(engine, container.id), "python3", PROGRAM, {}, timeout=60)
        if not isinstance(inside, run.Failure):
            found |= {key: inside.get(key) for key in ("versions", "gpu", "inputs")}
    return found


def nodes(words: Sequence[str]) -> dict[str, str]:
    """The layout that vLLM was started with: machines, this one's rank, and what is spread over how many GPUs."""
    given = flags(words)
    ray = given.get("--distributed-executor-backend") == "ray"
    found = {"machines": given.get("--nnodes", "not known (ray)" if ray else "1")}
    names = ("node-rank", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    return found | {name: given[f"--{name}"] for name in names if f"--{name}" in given}


def checkouts(profile: Profile, root: Path) -> dict[str, str]:
    """The commit of each mounted source, with ``-dirty`` where files differ from it."""
    found = {}
    for name, source in profile.mounted_sources.items():
        with contextlib.suppress(EnvgenError, OSError):  # not a git checkout, or one that cannot be read
            tree = WorkTree((root / Path(str(source.origin.checkout)).expanduser()).resolve())
            if head := tree.head:
                found[name] = head + ("-dirty" if tree.edited(head) else "")
    return found
