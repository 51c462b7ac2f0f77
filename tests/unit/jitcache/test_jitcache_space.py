"""Namespaces on the host's side: which key, which volume or folder, what gc takes, and where save and load go."""

from __future__ import annotations

import fcntl
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from jitcache_engine import ROOT, LocalEngine, cache, container
from jitcache_layouts import Shelf, put, release

from envgen.__main__ import main
from envgen.engine.host import Leftover
from envgen.engine.values import ExecResult, Mount
from envgen.errors import EngineError, NotFoundError, RefusedError, UsageError
from envgen.jitcache import space
from envgen.jitcache.place import make_query, mount_here
from envgen.jitcache.service import JitCache

VOLUMES = f"flashinfer: {{path: {ROOT}}}"
HOST = f"flashinfer: {{path: {ROOT}, host: ../host}}"


def here(jit: JitCache) -> Mount:
    return mount_here(jit.engine, jit.profile, jit.root)


def namespaces(tmp_path: Path, engine: LocalEngine, *ages: int) -> list[str]:
    """The current one, of today, and others of so many days ago."""
    jit = cache(tmp_path, engine, VOLUMES)
    current = here(jit).source
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
    mount = here(jit)
    files = render_profile(jit.profile, None, root=jit.root).files
    assert f"name: {mount.source}\n".encode() in files["compose/dev.yaml"]
    engine.volumes_ = {mount.source}
    release(tmp_path / "cache", "0.5.3")
    assert jit.inventory(make_query()).exists
    assert engine.mounts == (mount,)
    jit = cache(tmp_path, engine, HOST)
    mount = here(jit)
    assert Path(mount.source).parent == tmp_path / "host"
    files = render_profile(jit.profile, None, root=jit.root).files
    below = Path(mount.source).name
    assert f"${{ENVGEN_CACHES__FLASHINFER__HOST:-../../host}}/{below}".encode() in files["compose/dev.yaml"]


def test_a_stopped_container_of_another_namespace_is_not_followed(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "cache")
    jit = cache(tmp_path, engine, VOLUMES)
    current = here(jit)
    old = Mount("demo-dev-cache-flashinfer-0123456789ab", ROOT, "volume")
    engine.volumes_ = {current.source, old.source}
    release(tmp_path / "cache", "0.5.3")
    engine._containers = [container("c1", service="dev", state="exited", mounts=[old])]
    jit.inventory(make_query())
    assert engine.mounts == (current,)
    engine._containers = [container("c1", service="dev", state="exited", mounts=[current])]
    jit.inventory(make_query())
    assert engine.mounts == (current,)


def test_gc_takes_the_oldest_never_the_current_nor_one_in_use(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    names = namespaces(tmp_path, engine, 1, 30, 2, 60, 90)
    used = container("old", state="exited", mounts=[Mount(names[5], ROOT, "volume")])
    engine._containers = [used]
    jit = cache(tmp_path, engine, VOLUMES)
    plan = space.gc(jit, 2, dry_run=True)
    assert [one.source for one in plan] == [names[0], names[1], names[3], names[2], names[4], names[5]]
    assert [one.fate for one in plan] == ["kept", "kept", "would go", "would go", "would go", "kept"]
    assert engine.removed == []
    assert plan[5].users == ("old",)
    assert [one.fate for one in space.gc(jit, 2, dry_run=False)] == [
        "kept", "kept", "removed", "removed", "removed", "kept",
    ]  # fmt: skip
    assert engine.removed == [names[4], names[2], names[3]]  # the oldest first
    assert {"demo-dev-cache-flashinfer", "other", "demo-dev-cache-flashinfer-0123456789ab-more"} < engine.volumes_


def test_the_current_one_stays_however_old(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    names = namespaces(tmp_path, engine, 1, 2)
    os.utime(tmp_path / "volumes" / names[0] / "0.5.3/121a/cached_ops/page/page.so", (1, 1))
    plan = space.gc(cache(tmp_path, engine, VOLUMES), 1, dry_run=True)
    assert [(one.current, one.fate) for one in plan] == [(True, "kept"), (False, "would go"), (False, "would go")]


def test_a_volume_that_can_not_be_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = LocalEngine(tmp_path)
    namespaces(tmp_path, engine, 1)

    def refuse(name: str) -> None:
        raise EngineError(f"volume {name}: volume is in use")

    monkeypatch.setattr(engine, "remove_volume", refuse)
    monkeypatch.setattr("envgen.app.places.connect", lambda *_: engine)
    monkeypatch.chdir(tmp_path / "project")
    assert main(["cache", "gc", "--keep", "1"]) == 1
    out = capsys.readouterr().out
    assert "not removed: volume demo-dev-cache-flashinfer-000000000000: volume is in use" in out
    assert "freed 0" in out


def test_gc_of_folders_on_the_host(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    jit = cache(tmp_path, engine, HOST)
    current = Path(here(jit).source)
    put(current / "0.5.3/121a/cached_ops/page/page.so")
    old = tmp_path / "host/envgen-0123456789ab"
    os.utime(put(old / "0.5.3/121a/cached_ops/page/page.so"), (5, 5))
    for name in ("envgen-notahexkey12", "other", "0.5.3"):
        put(tmp_path / "host" / name / "x")
    (tmp_path / "host/envgen-ffffffffffff").symlink_to(tmp_path / "host/other")
    assert [one.fate for one in space.gc(jit, 1, dry_run=False)] == ["kept", "removed"]
    left = ["0.5.3", current.name, "envgen-ffffffffffff", "envgen-notahexkey12", "other"]
    assert sorted(path.name for path in (tmp_path / "host").iterdir()) == sorted(left)


def test_without_namespaces_there_is_nothing_to_collect(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="namespace: false"):
        space.gc(cache(tmp_path, LocalEngine(tmp_path)), 1, dry_run=True)


def test_save_and_load_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = LocalEngine(tmp_path / "cache")
    release(tmp_path / "cache", "0.7.2.post1")
    jit = cache(tmp_path, engine, VOLUMES)
    volume = here(jit).source
    engine.volumes_ = {volume}
    monkeypatch.setattr("envgen.app.places.connect", lambda *_: engine)
    monkeypatch.chdir(tmp_path / "project")
    assert main(["cache", "save", "k.tar.gz"]) == 0
    assert "saved into k.tar.gz: 9 modules" in capsys.readouterr().out
    assert sorted(path.name for path in Path().iterdir()) == ["envgen.yaml", "k.tar.gz"]
    with tarfile.open("k.tar.gz", "r:gz") as tar:
        assert tar.getnames()[0] == "envgen-cache.json"
    assert Path("k.tar.gz").stat().st_uid == os.getuid()
    assert main(["cache", "save", "k.tar.gz"]) == 6  # it is there
    assert main(["cache", "save", "k.tar.gz", "--force"]) == 0
    engine.folder = tmp_path / "elsewhere"
    assert main(["cache", "load", "k.tar.gz", "--json"]) == 0
    assert (tmp_path / "elsewhere/0.7.2.post1/121a/cached_ops/page/page.so").is_file()
    capsys.readouterr()
    assert main(["cache", "load", "k.tar.gz", "--set", "cuda.arch_list=12.0a"]) == 6
    assert "the archive is of another environment" in capsys.readouterr().err


def test_what_can_not_be_saved_or_loaded(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "cache")
    jit = cache(tmp_path, engine, VOLUMES)
    with pytest.raises(NotFoundError, match="no cache to save"):
        space.save(jit, tmp_path / "file")
    with pytest.raises(UsageError, match="is not there"):
        space.save(jit, tmp_path / "no/file")
    Shelf(tmp_path / "cache").module("page")
    engine.volumes_ = {here(jit).source}
    moved = {"root": "/r", "modules": 1, "files": 1, "bytes": 1, "replaced": [], "problems": []}
    engine.answers["demo:dev"] = {"ok": True, "result": moved}
    with pytest.raises(EngineError, match="another one"):
        space.save(jit, tmp_path / "file")
    assert not list(tmp_path.glob(".envgen-*"))


def test_what_killed_saves_left_is_removed_but_not_one_at_work(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "cache")
    release(tmp_path / "cache", "0.7.2.post1")
    jit = cache(tmp_path, engine, VOLUMES)
    engine.volumes_ = {here(jit).source}
    put(tmp_path / ".envgen-save-dead_123/cache")
    put(tmp_path / ".envgen-save-alive_12/cache")
    lock = os.open(tmp_path / ".envgen-save-alive_12", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        space.save(jit, tmp_path / "file")
        assert [path.name for path in tmp_path.glob(".envgen-save-*")] == [".envgen-save-alive_12"]
        assert (tmp_path / ".envgen-save-alive_12/cache").exists()
    finally:
        os.close(lock)
    space.save(jit, tmp_path / "other")
    assert not list(tmp_path.glob(".envgen-save-*"))


def test_of_several_saves_to_one_new_file_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file comes while the archive is written: it was not there when we looked."""
    engine = LocalEngine(tmp_path / "cache")
    release(tmp_path / "cache", "0.7.2.post1")
    jit = cache(tmp_path, engine, VOLUMES)
    engine.volumes_ = {here(jit).source}
    run = engine.run_once

    def meanwhile(*words: Any, **more: Any) -> ExecResult:
        put(tmp_path / "file", "of the winner")
        return run(*words, **more)

    monkeypatch.setattr(engine, "run_once", meanwhile)
    with pytest.raises(RefusedError, match="is there already"):
        space.save(jit, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "of the winner"
    space.save(jit, tmp_path / "file", force=True)
    assert tarfile.is_tarfile(tmp_path / "file")
    assert not list(tmp_path.glob(".envgen-*"))


def test_containers_of_killed_runs_do_not_pin_a_namespace(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    names = namespaces(tmp_path, engine, 30)
    engine._containers = [container("left", state="exited", mounts=[Mount(names[1], ROOT, "volume")])]
    jit = cache(tmp_path, engine, VOLUMES)
    assert [one.fate for one in space.gc(jit, 1, dry_run=True)] == ["kept", "kept"]
    engine.left = [Leftover("left", "left", 0.0, "its maker is gone")]
    plan = space.gc(jit, 1, dry_run=True)
    assert [(one.fate, one.users) for one in plan] == [("kept", ()), ("would go", ())]
    assert engine.left  # a dry run changes nothing
    assert [one.fate for one in space.gc(jit, 1, dry_run=False)] == ["kept", "removed"]
    assert engine.left == []
