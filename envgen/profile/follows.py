"""What follows from the other values of a profile, where it says nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from envgen.profile.model import Profile, Source
from envgen.profile.service import Service
from envgen.profile.tree import YamlNode
from envgen.profile.values import ContainerPath, Pin


def completed(profile: Profile, tree: YamlNode, extended: Sequence[Profile]) -> Profile:
    """``profile`` with the folders of its sources, with the wheels that mounted checkouts have from
    ``extended``, the nearest first, and with what follows from `services.X.model`.
    """
    sources = {}
    for name, source in profile.sources.items():
        if source.mount == Source.mount:
            mount = ContainerPath(f"/workspace/{name}")
            source = replace(source, mount=mount)
        binaries = tree.at(("sources", name, "binaries"))
        if source.origin.kind == "checkout" and binaries is None:
            source = replace(source, binaries=_wheel(name, extended))
        sources[name] = source
    services = {}
    for name, service in profile.services.items():
        services[name] = _with_model(service)
    return replace(
        profile,
        sources=MappingProxyType(sources),
        services=MappingProxyType(services),
    )


def _wheel(source: str, profiles: Sequence[Profile]) -> Pin | None:
    """The wheel of a source in the first of ``profiles`` that installs one."""
    for profile in profiles:
        described = profile.sources.get(source)
        if described is not None and described.origin.wheel is not None:
            return described.origin.wheel
    return None


def _with_model(service: Service) -> Service:
    """A service whose `vllm serve` loads its `model`, and whose answers are asked for by its name."""
    model = service.model
    if model is None or not service.is_vllm:
        return service
    if len(service.command) == 2 and service.flag("model") is None:
        service = replace(service, command=(*service.command, model.repo))
    ready = service.ready
    if ready is None or ready.port is None or ready.model is not None:
        return service
    name, *_ = service.names or (model.repo,)
    return replace(service, ready=replace(ready, model=name))
