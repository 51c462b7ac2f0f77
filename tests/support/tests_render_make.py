"""Profiles for the tests of rendering, made without a project file."""

from __future__ import annotations

from typing import Any

from envgen.profile.model import Base, Cuda, Encoding, Install, Mode, Origin, Profile, Source, Tiktoken
from envgen.profile.service import Service
from envgen.profile.values import ContainerPath, CudaArchList, HostPath, ImageRef


def source(name: str = "vllm", **changes: Any) -> Source:
    values: dict[str, Any] = {
        "origin": Origin(git=f"https://example.org/{name}.git", ref="v1.0"),
        "package": name,
        "distribution": name,
        "mount": ContainerPath(f"/workspace/{name}"),
        "install": Install(),
    }
    return Source(**{**values, **changes})


def mounted(name: str = "vllm", path: str = "../vllm", **changes: Any) -> Source:
    return source(name, origin=Origin(checkout=HostPath(path)), **changes)


def encoding(**changes: Any) -> Tiktoken:
    values: dict[str, Any] = {"url": "https://example.org/o200k_base.tiktoken", "sha256": "0" * 64}
    return Tiktoken(encodings={"o200k_base": Encoding(**{**values, **changes})})


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {
        "name": "prod",
        "project": "demo",
        "mode": Mode.PRODUCTION,
        "base": Base(ImageRef.parse("example.org/base:1")),
        "cuda": Cuda(CudaArchList.parse("12.1a")),
        "services": {"serve": Service(command=("vllm", "serve"))},
    }
    return Profile(**{**values, **changes})
