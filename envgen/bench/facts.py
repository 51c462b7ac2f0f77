"""What was measured: image, lock, sources, versions, GPU, variables and flags of a running service, for a run's record.

``collect`` never fails for what it can't learn: the key is then left out. The record leaves out secrets.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgen import __version__
from envgen.bench.compare import flags
from envgen.engine.base import Container, Engine
from envgen.engine.git import WorkTree
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.redact import secret_like, without_login

HIDDEN = "(secret)"

PROGRAM = run.Program(("server_facts",))


def collect(
    engine: Engine | None, container: Container | None, profile: Profile | None, root: Path | None, service: str
) -> dict[str, Any]:
    """The environment of a run, by the keys that docs/benchmarking.md names. What isn't given is left out."""
    found: dict[str, Any] = {"envgen": __version__, "service": service}
    if profile is not None:
        found |= {"project": profile.project, "profile": profile.name}
        found["sources"] = {**pins(profile), **(checkouts(profile, root) if root else {})}
    if engine is not None and container is not None:
        found |= _of_container(engine, container, profile)
        found["sources"] = {**found.get("sources", {}), **found.pop("built_from", {})}
    return {key: value for key, value in found.items() if value not in (None, "", {}, [])}


def _of_container(engine: Engine, container: Container, profile: Profile | None) -> dict[str, Any]:
    found: dict[str, Any] = {"container": container.name, "env": variables(container.env, profile)}
    info = engine.info()
    found["host"] = {"arch": info.arch, "cpus": info.cpus, "memory": info.memory, "engine": info.version}
    if info.endpoint.startswith("unix://"):
        found["host"]["kernel"] = platform.release()
    image = engine.image(container.image_id)
    if image is not None:
        name = image.repo_tags[0] if image.repo_tags else ""
        digest = image.repo_digests[0] if image.repo_digests else ""
        found["image"] = {key: text for key, text in (("name", name), ("id", image.id), ("digest", digest)) if text}
        found["lock"] = image.labels.get("dev.envgen.lock", "")
        found["render"] = image.labels.get("dev.envgen.render", "")
    found["variant"] = container.labels.get("dev.envgen.variant", "")
    argv = (engine.inspect(container.id) or {}).get("Args")
    if isinstance(argv, list):
        found["flags"] = [str(word) for word in argv]
        found["nodes"] = nodes(found["flags"])
    inside = _inside(engine, container)
    found |= {key: texts(inside[key]) for key in ("versions", "gpu") if key in inside}
    inputs = texts(inside.get("inputs"))
    if inputs:
        found["inputs"] = inputs
        if profile is not None:
            found["built_from"] = commits(profile, inputs)
    return found


def nodes(words: Sequence[str]) -> dict[str, str]:
    """The layout that vLLM was started with: machines, this one's rank, and what is spread over how many GPUs."""
    given = flags(words)
    ray = given.get("--distributed-executor-backend") == "ray"
    found = {"machines": given.get("--nnodes", "not known (ray)" if ray else "1")}
    names = ("node-rank", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    return found | {name: given[f"--{name}"] for name in names if f"--{name}" in given}


def _inside(engine: Engine, container: Container) -> dict[str, Any]:
    try:
        found = run.ask(run.in_container(engine, container.id), "python3", PROGRAM, {}, timeout=60)
    except EnvgenError:
        return {}
    return {} if isinstance(found, run.Failure) else found


def texts(data: Any) -> dict[str, Any]:
    """A flat object out of the container: whatever else is in it is left out of the record."""
    plain = (str, int, float)
    return {key: value for key, value in data.items() if isinstance(value, plain)} if isinstance(data, dict) else {}


def pins(profile: Profile) -> dict[str, str]:
    """The version of each source that comes from a package index."""
    origins = {name: source.origin.pypi or source.origin.wheel for name, source in profile.sources.items()}
    return {name: str(pin) for name, pin in origins.items() if pin is not None}


def commits(profile: Profile, inputs: Mapping[str, str]) -> dict[str, str]:
    """The commit of each source that was built from a git repository, as the image's manifest names it."""
    found = {}
    for name, source in profile.sources.items():
        key = f"git {source.origin.git} {source.origin.git_ref}"
        if source.origin.git and key in inputs:
            found[name] = inputs[key]
    return found


def checkouts(profile: Profile, root: Path) -> dict[str, str]:
    """The commit of each mounted source, with ``-dirty`` where files differ from it."""
    found = {}
    for name, source in profile.mounted_sources.items():
        folder = (root / Path(str(source.origin.checkout)).expanduser()).resolve()
        try:
            tree = WorkTree(folder)
            head = tree.head
            dirty = head and tree.edited(head)
        except (EnvgenError, OSError):
            continue  # not a git checkout, or one that cannot be read
        if head:
            found[name] = head + ("-dirty" if dirty else "")
    return found


def variables(env: Mapping[str, str], profile: Profile | None) -> dict[str, str]:
    """Variables for a record: the values of secrets are hidden."""
    secret = set(profile.secrets) if profile else set()
    hide = {name for name in env if name in secret or secret_like(name)}
    return {name: HIDDEN if name in hide else without_login(value) for name, value in sorted(env.items())}
