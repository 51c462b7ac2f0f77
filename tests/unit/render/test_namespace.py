"""The key of FlashInfer's cache: what changes it, and what must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envgen.lock.model import GitLock, ImageLock, ProfileLock
from envgen.patches.series import Patch, Series
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile
from envgen.render.locking import folder_of, key_parts, namespace, volume_of

PROJECT = """\
version: 1
name: demo
profiles:
  prod:
    mode: production
    base: {image: "base:1"}
    cuda: {arch_list: "12.1a"}
    gpu: none
    caches: {flashinfer: {path: /root/.cache/flashinfer}, torch: {path: /torch}}
    sources:
      flashinfer:
        origin: {git: "https://example.org/flashinfer.git", ref: v0.5.3}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
    services:
      serve: {command: [sleep, infinity]}
"""


def profile(tmp_path: Path, *sets: str) -> Profile:
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    return select(load_project(file=tmp_path / "envgen.yaml", sets=sets).project, None)


def lock(digest: str = "sha256:" + "1" * 64, commit: str = "2" * 40) -> ProfileLock:
    git = GitLock("https://example.org/flashinfer.git", "v0.5.3", commit)
    return ProfileLock(ImageLock("base:1", digest), {"flashinfer": git}, {})


def key(tmp_path: Path, *sets: str, **locked: Any) -> str:
    return namespace(profile(tmp_path, *sets), lock(**locked) if locked is not None else None, {})


@pytest.mark.parametrize(
    "changed",
    [
        "cuda.arch_list=12.0a",
        "base.image=base:2",
        "sources.flashinfer.origin.ref=v0.6.0",
        "pip={protect: [], deps: [torch==2.9.0]}",
    ],
)
def test_what_kernels_depend_on_gives_another_key(tmp_path: Path, changed: str) -> None:
    whole = namespace(profile(tmp_path), None, {})
    assert len(whole) == 12
    assert namespace(profile(tmp_path, changed), None, {}) != whole
    assert namespace(profile(tmp_path), None, {}) == whole  # and back


@pytest.mark.parametrize(
    "changed",
    ["services.serve.command=[sleep, '1']", "shm_size=1g", "build.max_jobs=3",
     "pip={protect: [], deps: [torchaudio==2.9.0]}",
     "caches.torch.path=/elsewhere", "description=other"],
)  # fmt: skip
def test_what_they_do_not_depend_on_gives_the_same(tmp_path: Path, changed: str) -> None:
    assert namespace(profile(tmp_path, changed), None, {}) == namespace(profile(tmp_path), None, {})


def test_the_lock_decides_where_it_says_more(tmp_path: Path) -> None:
    keys = {
        namespace(profile(tmp_path), None, {}),
        key(tmp_path, commit="2" * 40),
        key(tmp_path, commit="3" * 40),
        key(tmp_path, digest="sha256:" + "4" * 64),
    }
    assert len(keys) == 4


def test_a_checkout_counts_by_its_place(tmp_path: Path) -> None:
    """Its edits are what `why` and `clear --stale` are for: a key for each would start an empty cache each time."""
    deployment = profile(tmp_path, "mode=development", "sources.flashinfer.origin={checkout: ../one}")
    there = profile(tmp_path, "mode=development", "sources.flashinfer.origin={checkout: ../two}")
    assert key_parts(deployment, None, {})["flashinfer"] == "checkout at /workspace/flashinfer"
    assert namespace(deployment, None, {}) == namespace(there, None, {}) != namespace(profile(tmp_path), None, {})


def test_patches_change_the_end_of_the_key(tmp_path: Path) -> None:
    """By the beginning, a new cache finds one that it can take untouched modules from."""
    one, two = (
        {"flashinfer": Series("patches/x", (Patch("a", "a", content, ("csrc/a.cu",)),))} for content in (b"1", b"2")
    )
    keys = [namespace(profile(tmp_path), None, series) for series in ({}, one, two)]
    assert len({key[:6] for key in keys}) == 1 and len({key[6:] for key in keys}) == 3
    assert {len(key) for key in keys} == {12}


def test_switched_off_and_names(tmp_path: Path) -> None:
    assert namespace(profile(tmp_path, "caches.flashinfer.namespace=false"), None, {}) == ""
    one = profile(tmp_path)
    assert volume_of(one, "flashinfer", "abc") == "demo-prod-cache-flashinfer-abc"
    assert volume_of(one, "torch", "abc") == "demo-prod-cache-torch"
    assert (folder_of("flashinfer", "abc"), folder_of("torch", "abc"), folder_of("flashinfer", "")) == (
        "/envgen-abc", "", "",
    )  # fmt: skip
