"""Namespaces on the host's side: which key, which volume or folder, and who uses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jitcache_engine import ROOT, LocalEngine, cache, container
from jitcache_layouts import release

from envgen.engine.values import ContainerMount
from envgen.jitcache import space
from envgen.jitcache.place import Query, cache_mount
from envgen.jitcache.service import JitCache
from envgen.render.environment import service_env
from envgen.render.locking import ALIKE

VOLUMES = f"flashinfer: {{path: {ROOT}}}"
HOST = f"flashinfer: {{path: {ROOT}, host: host}}"


def deployment(jit: JitCache) -> ContainerMount:
    return cache_mount(jit.deployment)


def test_the_current_volume_is_the_rendered_one(tmp_path: Path) -> None:
    """What `envgen cache` looks into without a service is what Compose mounts."""
    from envgen.render.outputs import render_profile

    engine = LocalEngine(tmp_path / "cache")
    jit = cache(tmp_path, engine, VOLUMES)
    mount = deployment(jit)
    files = render_profile(jit.deployment.profile, None, root=jit.deployment.root).files
    assert f"name: {mount.source}".encode() in files["compose/dev.yaml"]
    engine.volumes_ = {mount.source}
    release(tmp_path / "cache", "0.5.3")
    assert jit.inventory(Query()).exists
    assert engine.mounts == (mount,)
    jit = cache(tmp_path, engine, HOST)
    mount = deployment(jit)
    assert Path(mount.source).parent == tmp_path / "project" / "host"
    files = render_profile(jit.deployment.profile, None, root=jit.deployment.root).files
    below = Path(mount.source).name
    assert f"${{ENVGEN_CACHES__FLASHINFER__HOST:-../host}}/{below}".encode() in files["compose/dev.yaml"]


def test_a_stopped_container_of_another_namespace_is_not_followed(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "cache")
    jit = cache(tmp_path, engine, VOLUMES)
    current = deployment(jit)
    old = ContainerMount("demo-dev-cache-flashinfer-0123456789ab", ROOT, "volume")
    engine.volumes_ = {current.source, old.source}
    release(tmp_path / "cache", "0.5.3")
    engine._containers = [container("c1", service="dev", state="exited", mounts=[old])]
    jit.inventory(Query())
    assert engine.mounts == (current,)
    engine._containers = [container("c1", service="dev", state="exited", mounts=[current])]
    jit.inventory(Query())
    assert engine.mounts == (current,)


@pytest.mark.parametrize("caches", [VOLUMES, HOST])
def test_a_new_cache_begins_with_the_newest_one_that_differs_by_patches_alone(tmp_path: Path, caches: str) -> None:
    engine = LocalEngine(tmp_path)
    jit = cache(tmp_path, engine, caches)
    own = deployment(jit).source
    head, alike = own[:-12], own[-12:][:ALIKE]
    ages = {f"{alike:f<12}": 2, f"{alike:e<12}": 1, "0" * 12: 0, "not-a-key-12": 0}
    for key, age in ages.items():
        name = f"{head}{key}"
        if caches is VOLUMES:
            engine.volumes_.add(name)
            engine.made[name] = f"2026-11-{28 - age}T12:00:00Z"
        else:
            Path(name).mkdir(parents=True)
            os.utime(name, (1_700_000_000 - age * 86400,) * 2)
    found = space.sibling_cache(jit)
    assert found is not None and found.source == f"{head}{alike:e<12}"
    engine.volumes_.add(own)
    Path(own).mkdir(parents=True) if caches is HOST else None
    assert space.sibling_cache(jit) is None  # there is a cache already


def test_without_keys_there_is_no_other_cache(tmp_path: Path) -> None:
    assert space.sibling_cache(cache(tmp_path, LocalEngine(tmp_path))) is None


def test_the_other_caches_are_mounted_where_their_programs_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = LocalEngine(tmp_path / "cache")
    release(tmp_path / "cache", "0.5.3")
    kept = f"{VOLUMES}, cute_dsl: {{path: /c}}, tilelang: {{path: /t}}, b12x: {{path: /b}}, "
    kept += "humming: {path: /m}, quack: {path: /q}, huggingface: {path: /h}"
    jit = cache(tmp_path, engine, kept)
    engine.volumes_ |= {deployment(jit).source, "demo-dev-cache-tilelang"}
    monkeypatch.setattr("envgen.deployment.host.connect", lambda *_: engine)
    monkeypatch.chdir(tmp_path / "project")
    env = service_env(jit.deployment.profile)
    wanted = {"CUTE_DSL_CACHE_DIR": "/c", "TILELANG_CACHE_DIR": "/t", "B12X_COMPILE_CACHE_DIR": "/b/compile"}
    assert wanted.items() <= env.items()
