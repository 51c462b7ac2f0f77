"""Namespaces on the host's side: which key, which volume or folder, and who uses it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jitcache_engine import ROOT, LocalEngine, cache, container
from jitcache_layouts import put, release

from envgen.__main__ import main
from envgen.engine.host import Leftover
from envgen.engine.values import ContainerMount
from envgen.jitcache import space
from envgen.jitcache.place import cache_mount, make_query
from envgen.jitcache.service import JitCache
from envgen.render.environment import service_env

VOLUMES = f"flashinfer: {{path: {ROOT}}}"
HOST = f"flashinfer: {{path: {ROOT}, host: host}}"


def deployment(jit: JitCache) -> ContainerMount:
    return cache_mount(jit.deployment)


def namespaces(tmp_path: Path, engine: LocalEngine, *ages: int) -> list[str]:
    """The current one, of today, and others of so many days ago."""
    jit = cache(tmp_path, engine, VOLUMES)
    current = deployment(jit).source
    engine.volumes_ = {current, "demo-dev-cache-flashinfer", "demo-dev-cache-flashinfer-0123456789ab-more", "other"}
    names = [current]
    for number in range(len(ages)):
        name = f"demo-dev-cache-flashinfer-{number:012x}"
        engine.volumes_.add(name)
        names.append(name)
    for name, age in zip(names, (0, *ages), strict=True):
        file = put(tmp_path / "volumes" / name / "0.5.3/121a/cached_ops/page/page.so")
        os.utime(file, (1_700_000_000 - age * 86400,) * 2)
        engine.folders[name] = tmp_path / "volumes" / name
    return names


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
    assert jit.inventory(make_query()).exists
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
    jit.inventory(make_query())
    assert engine.mounts == (current,)
    engine._containers = [container("c1", service="dev", state="exited", mounts=[current])]
    jit.inventory(make_query())
    assert engine.mounts == (current,)


def test_the_namespaces_the_last_used_first(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    names = namespaces(tmp_path, engine, 1, 30, 2)
    os.utime(tmp_path / "volumes" / names[0] / "0.5.3/121a/cached_ops/page/page.so", (1, 1))
    engine._containers = [container("old", state="exited", mounts=[ContainerMount(names[2], ROOT, "volume")])]
    found = space.spaces(cache(tmp_path, engine, VOLUMES))
    assert [(one.source, one.current, one.users) for one in found] == [
        (names[0], True, ()),  # however old
        (names[1], False, ()), (names[3], False, ()), (names[2], False, ("old",)),
    ]  # fmt: skip
    engine.left = [Leftover("old", "old", 0.0, "its maker is gone")]
    assert [one.users for one in space.spaces(cache(tmp_path, engine, VOLUMES))] == [(), (), (), ()]


def test_removal_asks_once_more_who_uses_it(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    names = namespaces(tmp_path, engine, 1)
    jit = cache(tmp_path, engine, VOLUMES)
    old = space.spaces(jit)[1]
    engine._containers = [container("new", mounts=[ContainerMount(names[1], ROOT, "volume")])]
    assert space.remove(jit, old) == "a container uses it now"
    engine._containers = []
    assert space.remove(jit, old) == ""
    assert engine.removed == [names[1]]


def test_folders_on_the_host(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    jit = cache(tmp_path, engine, HOST)
    current = Path(deployment(jit).source)
    put(current / "0.5.3/121a/cached_ops/page/page.so")
    old = tmp_path / "project/host/envgen-0123456789ab"
    os.utime(put(old / "0.5.3/121a/cached_ops/page/page.so"), (5, 5))
    for name in ("envgen-notahexkey12", "other", "0.5.3"):
        put(tmp_path / "project" / "host" / name / "x")
    (tmp_path / "project/host/envgen-ffffffffffff").symlink_to(tmp_path / "project/host/other")
    found = space.spaces(jit)
    assert [one.source for one in found] == [str(current), str(old)]
    assert space.remove(jit, found[1]) == ""
    left = ["0.5.3", current.name, "envgen-ffffffffffff", "envgen-notahexkey12", "other"]
    assert sorted(path.name for path in (tmp_path / "project" / "host").iterdir()) == sorted(left)


def test_without_namespaces_there_are_none(tmp_path: Path) -> None:
    assert space.spaces(cache(tmp_path, LocalEngine(tmp_path))) == []


def test_the_other_caches_are_named_and_mounted_where_their_programs_look(
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
    assert main(["cache", "list", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["others"] == ["cute_dsl", "tilelang", "humming", "quack"]
    assert "the caches cute_dsl, tilelang, humming, quack" in printed.err
    env = service_env(jit.deployment.profile)
    wanted = {"CUTE_DSL_CACHE_DIR": "/c", "TILELANG_CACHE_DIR": "/t", "B12X_COMPILE_CACHE_DIR": "/b/compile"}
    assert wanted.items() <= env.items()
