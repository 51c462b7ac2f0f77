"""Each key of the project file is used by a shipped file, or has a reason to be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from envgen.profile.model import Profile
from envgen.profile.shape import MAPPING, RECORD, fields_of

TOP = Path(__file__).parents[3]
FILES = (
    "envgen.yaml",
    "templates/init/envgen.yaml",
    "examples/quickstart/envgen.yaml",
    "examples/from-source/envgen.yaml",
)
# What none of the files needs, and who does.
REASONS: Mapping[str, str] = {
    "Base.platform": "an image for another architecture: docs/engines.md",
    "Base.python": "a base image whose Python is in an environment of its own",
    "Build.wheelhouse": "a machine without an index, or with wheels of one's own",
    "Cache.namespace": "a cache that FlashInfer outside of envgen shares",
    "Cuda.home": "an image whose CUDA is elsewhere",
    "DockerfileExtra.base": "what no key says",
    "DockerfileExtra.end": "what no key says",
    "Health.command": "a server without HTTP",
    "Health.complete": "a server that is not to be asked for tokens",
    "Health.retries": "Docker's own key",
    "Health.timeout": "Docker's own key",
    "Source.binaries": "another release than the wheel of the extended profile",
    "Profile.env_groups": "some groups of variables, and not others",
    "Variant.env_groups": "the same for one start",
    "Logging.driver": "an engine with a driver of its own, or the journal",
    "Logging.max_files": "a disk with more or less room",
    "Logging.max_size": "a disk with more or less room",
    "Memory.limit": "a service that must not take more than its part",
    "Profile.logging": "an engine with a driver of its own, or the journal",
    "Memory.floor": "another share of the machine for what runs beside a service, or no guard",
    "ModelRef.ignore": "a repository that holds its weights twice",
    "ModelRef.revision": "a model at a commit",
    "Network.ca_certificates": "a company's network",
    "Origin.folder": "code of one's own",
    "Origin.pull": "a pull request, tried",
    "Origin.pypi": "a release that is built, with patches",
    **dict.fromkeys(("Pip.index", "Pip.extra_indexes", "Pip.netrc"), "a company's package index"),
    "Profile.compose": "what no key says",
    "Profile.dockerfile_extra": "what no key says",
    "Profile.image": "a name that leads to a registry",
    "Profile.memory": "another floor than that of a GPU with unified memory",
    "Profile.network": "a company's network",
    "Profile.nodes": "several machines: docs/two-machines.md",
    "Service.cap_add": "RDMA needs IPC_LOCK",
    "Service.cluster": "several machines: docs/two-machines.md",
    "Service.cpuset": "GB10 has fast and slow cores",
    "Service.devices": "RDMA needs /dev/infiniband",
    "Service.gpu": "two servers on two GPUs",
    "Service.mounts": "a chat template, a folder of models: docs/recipes.md",
    "Service.network": "RDMA and several machines",
    "Service.restart": "a server that nobody watches",
    "Service.shm_size": "a server that needs more than its neighbour",
    "Service.user": "files that belong to whoever starts it",
    "Service.working_dir": "a program that reads from where it stands",
    "Variant.env": "a group that only one variant has",
    **{f"Cluster.{key}": "docs/two-machines.md" for key in ("nodes", "port")},
    **{f"Machine.{key}": "docs/two-machines.md" for key in ("address", "interface", "context", "rdma", "caches")},
    **{f"Mount.{key}": "docs/recipes.md" for key in ("host", "path", "read_only")},
}


def used(record: Any, written: object) -> Iterator[str]:
    """The keys of the model in what a file has at a place."""
    fields = fields_of(record)
    for name, value in (written if isinstance(written, dict) else {}).items():
        if name not in fields:
            continue
        yield f"{record.__name__}.{name}"
        shape = fields[name].shape
        if shape.kind == RECORD:
            yield from used(shape.type, value)
        elif shape.kind == MAPPING and shape.inner and shape.inner.kind == RECORD and isinstance(value, dict):
            for one in value.values():
                yield from used(shape.inner.type, one)


def every(record: Any, seen: set[Any]) -> Iterator[str]:
    seen.add(record)
    for name, field in fields_of(record).items():
        yield f"{record.__name__}.{name}"
        shape = field.shape.inner if field.shape.kind == MAPPING and field.shape.inner else field.shape
        if shape.kind == RECORD and shape.type not in seen:
            yield from every(shape.type, seen)


def test_each_key_is_used_or_has_a_reason() -> None:
    found = set[str]()
    for file in FILES:
        text = yaml.safe_load((TOP / file).read_text(encoding="utf-8"))
        for profile in (text.get("defaults"), *text["profiles"].values()):
            found |= set(used(Profile, profile))
    assert {*every(Profile, set())} - found <= REASONS.keys()
