"""cache list: every layout, exactly; whatever can't be read is said and left out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from jitcache_asking import answer
from jitcache_layouts import RELEASES, Shelf, put, release, snapshot

from envgen.binding import bind
from envgen.inside.jit import layout
from envgen.inside.jit.shapes import Inventory


def listed(root: Path, *patterns: str, **request: Any) -> Inventory:
    document = answer({"operation": "list", "root": str(root), "patterns": list(patterns), **request})
    assert document["ok"], document
    return bind(Inventory, document["result"])


@pytest.mark.parametrize("version", RELEASES)
def test_every_layout(tmp_path: Path, version: str) -> None:
    shelf = release(tmp_path, version)
    before = snapshot(tmp_path)
    found = listed(tmp_path)
    assert snapshot(tmp_path) == before
    modules = {module.name: module for module in found.modules}
    expected = {"page", "rope", "silu_and_mul", "gemm_sm120", "fp4_gemm_cutlass_sm120", "fused_moe_120", "fused_moe_90"}
    if version == "0.7.2.post1":
        expected |= {"kda_ptx", "moe_gated_sm121_cute_dsl"}
        assert modules["kda_ptx"].kind == "other"
        assert modules["moe_gated_sm121_cute_dsl"].kind == "cute_dsl"
    assert set(modules) == expected
    page = modules["page"]
    files = [path for path in (shelf.ops / "page").iterdir() if path.is_file()]
    assert (page.version, page.arch, page.kind, page.built) == (version, "121a", "ninja", True)
    assert (page.files, page.bytes) == (len(files), sum(path.stat().st_size for path in files))
    assert page.objects == 2
    assert page.modified == (shelf.ops / "page/page.so").stat().st_mtime
    assert not page.locked
    assert not found.problems


def test_without_an_arch_and_several(tmp_path: Path) -> None:
    for arch in ("", "120a_121a", "121a"):
        Shelf(tmp_path, "0.5.3", arch).module("page")
    assert [module.arch for module in listed(tmp_path).modules] == ["120a_121a", "121a", ""]
    assert [module.arch for module in listed(tmp_path, archs=["121a"]).modules] == ["121a"]
    assert [module.arch for module in listed(tmp_path, archs=[""]).modules] == [""]
    assert not listed(tmp_path, version="0.6.0").modules


def test_no_cache_and_an_empty_one(tmp_path: Path) -> None:
    assert not listed(tmp_path / "nowhere").exists
    found = listed(tmp_path)
    assert found.exists
    assert not found.modules
    (tmp_path / "0.5.3/121a/cached_ops/tmp").mkdir(parents=True)
    assert not listed(tmp_path).modules


def test_held_locks(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    fds = []
    for name in ("page.lock", "flashinfer_jit.lock"):
        fds.append(os.open(shelf.ops / "tmp" / name, os.O_RDWR | os.O_CREAT))
        fcntl.flock(fds[-1], fcntl.LOCK_EX)
    found = listed(tmp_path)
    assert [module.name for module in found.modules if module.locked] == ["page"]
    assert list(found.building) == ["0.5.3/121a/cached_ops/tmp/flashinfer_jit.lock"]
    for fd in fds:
        os.close(fd)
    assert not [module for module in listed(tmp_path).modules if module.locked]


def test_links_files_and_odd_things_are_not_modules(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    put(outside / "huge", b"x" * 100_000)
    (shelf.ops / "linked").symlink_to(outside)
    put(shelf.ops / "notes")
    os.mkfifo(shelf.ops / "fifo")
    (cache / "0.9.9").symlink_to(outside)
    found = listed(cache)
    (linked,) = [module for module in found.modules if module.name not in {"page", "rope"} and module.kind == "link"]
    assert (linked.name, linked.bytes, linked.files) == ("linked", 0, 0)
    assert "notes" not in {module.name for module in found.modules}
    assert found.problems == ("0.9.9: is a link; not followed",)


def test_unreadable_folders_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path, "0.5.3")
    real = os.open

    def deny(path: Any, *args: Any, **kwargs: Any) -> int:
        if path in ("rope", "tmp"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", deny)
    found = listed(tmp_path)
    (rope,) = [module for module in found.modules if module.name == "rope"]
    assert rope.unread == 1
    assert "0.5.3/121a/cached_ops/rope: Permission denied" in found.problems
    assert len([module for module in found.modules if not module.unread]) == 6


def test_leftovers_are_never_listed(tmp_path: Path) -> None:
    release(tmp_path, "0.5.3")
    put(tmp_path / ".envgen-work-ff/0/page.so", b"x" * 10)
    assert not [module for module in listed(tmp_path).modules if module.name.startswith(".")]


def test_a_cache_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = release(tmp_path, "0.5.3")
    real = layout.entries_of

    def vanish(*args: Any) -> Any:
        entries = real(*args)
        for path in sorted((shelf.ops / "page").iterdir()):
            path.unlink()
        (shelf.ops / "page").rmdir()
        return entries

    monkeypatch.setattr("envgen.inside.jit.layout.entries_of", vanish)
    assert "page" not in {module.name for module in listed(tmp_path).modules}


def test_one_document_whatever_comes() -> None:
    requests: tuple[Any, ...] = ({}, [], 3, None, {"operation": "format"}, {"operation": "list", "root": 3})
    for request in requests:
        assert answer(request)["ok"] in (True, False)


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    import json

    (tmp_path / "0.5.3/121a/cached_ops").mkdir(parents=True)
    name = os.fsdecode(b"od\xffd\n")
    (tmp_path / "0.5.3/121a/cached_ops" / name).mkdir()
    document = json.loads(json.dumps(answer({"operation": "list", "root": str(tmp_path)})))
    (module,) = document["result"]["modules"]
    assert module["name"] == name
    assert answer({"operation": "clear", "root": str(tmp_path), "patterns": [name]})["ok"]
