"""cache clear: kills, races, full disks, and what hypothesis can think of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jitcache_asking import answer, ask, bad, good
from jitcache_layouts import lost, outermost, put, release, snapshot

from envgen.inside.jit import locks, tree


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the agent runs any more."""


@pytest.mark.parametrize("step", range(14))
def test_a_kill_leaves_the_old_module_or_none_and_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    release(tmp_path, "0.7.2.post1")
    before = snapshot(tmp_path)
    module = {key for key in before if "cached_ops/gemm_sm120" in key}
    count = 0
    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "unlink", "rmdir"):
            real = getattr(os, name)

            def act(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                nonlocal count
                if count == step:
                    raise Killed
                count += 1
                return real(*args, **kwargs)

            patch.setattr(os, name, act)
        answer({"operation": "clear", "root": str(tmp_path), "patterns": ["gemm_sm120"]})
    left = {key for key in snapshot(tmp_path) if key in module}
    assert left in (set(), module)
    again = ask(tmp_path, "gemm_sm120")
    assert again["ok"] or again["kind"] == "not_found"
    gone = outermost({key for key in before if key not in snapshot(tmp_path)})
    assert gone == {"0.7.2.post1/121a/cached_ops/gemm_sm120", "0.7.2.post1/121a/generated/gen_gemm_sm120"}
    assert not list(tmp_path.glob(".envgen-*-*"))


def test_trash_of_another_module_is_finished_too(tmp_path: Path) -> None:
    release(tmp_path, "0.5.3")
    put(tmp_path / ".envgen-work-00ff/0/page.so")
    assert good(tmp_path, "rope", dry_run=True)["leftovers"] == {"count": 1, "bytes": 64}
    assert good(tmp_path, "rope")["leftovers"]["count"] == 1
    assert not (tmp_path / ".envgen-work-00ff").exists()


def test_trash_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    release(cache, "0.5.3")
    put(outside / "precious")
    (cache / ".envgen-work-00ff").symlink_to(outside)
    good(cache, "page")
    assert (outside / "precious").exists()


def test_a_module_that_vanishes_meanwhile_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = release(tmp_path, "0.5.3")
    real = locks.make_lock_folder

    def vanish(*args: Any, **kwargs: Any) -> Any:
        (shelf.ops / "page").rename(tmp_path / "elsewhere")
        return real(*args, **kwargs)

    monkeypatch.setattr(locks, "make_lock_folder", vanish)
    result = good(tmp_path, "page", "rope")
    assert [m["name"] for m in result["modules"]] == ["rope"]


def test_a_folder_exchanged_for_a_link_in_mid_way_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    put(outside / "precious")
    put(shelf.ops / "page/sub/file")
    real, done = os.rename, list[Any]()

    def exchange(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if not done:
            done.append(1)
            (trash,) = cache.glob(".envgen-work-*")
            real(trash / "0/sub", tmp_path / "moved")
            (trash / "0/sub").symlink_to(outside)

    monkeypatch.setattr(os, "rename", exchange)
    good(cache, "page")
    assert (tmp_path / "moved/file").exists()
    assert (outside / "precious").exists()


def test_a_rename_that_fails_is_an_error_and_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path, "0.5.3")
    before = snapshot(tmp_path)

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", fail)
    result = good(tmp_path, "page")
    assert result["freed"] == 0
    assert result["errors"] == ["0.5.3/121a/cached_ops/page: Permission denied"]
    assert not result["modules"][0]["gone"]
    assert not lost(before, tmp_path)


def test_a_cache_that_can_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path, "0.5.3")

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", fail)
    assert "Read-only" in bad("refused", tmp_path, "page")["message"]


def test_what_can_not_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed clear left holds a file that can't go."""
    root = tmp_path / "cache"
    release(root, "0.7.2.post1")
    put(root / ".envgen-work-5cac0360feddb388/0.5.3/x")
    unlink = os.unlink

    def refuse(name: str, **more: int) -> None:
        if name == "x":
            raise PermissionError(1, "Operation not permitted")
        unlink(name, **more)

    monkeypatch.setattr("envgen.inside.jit.tree.os.unlink", refuse)
    cleared = good(root, "rope")
    assert [module["name"] for module in cleared["modules"]] == ["rope"]
    assert cleared["errors"] == [".envgen-work-5cac0360feddb388/0.5.3/x: Operation not permitted"]


def test_removal_never_leaves_the_folder(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside/precious")
    put(tmp_path / "top/a1/b/c/x")
    (tmp_path / "top/a1/link").symlink_to(tmp_path / "outside")
    (tmp_path / "top/a1/b/file").symlink_to(outside)
    os.mkfifo(tmp_path / "top/a1/fifo")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    tree.remove("top", fd, os.fstat(fd).st_dev, errors, "top")
    os.close(fd)
    assert errors == []
    assert not (tmp_path / "top").exists()
    assert outside.exists()


def test_what_is_on_another_file_system_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "top/x")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    tree.remove("top", fd, -1, errors, "top")
    os.close(fd)
    assert errors == ["top: is on another file system; left alone"]
    assert (tmp_path / "top/x").exists()


# Whatever is asked for: nothing but the planned targets goes

NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


@settings(max_examples=30)
@given(
    names=st.sets(NAMES, min_size=1, max_size=4),
    patterns=st.lists(
        st.one_of(NAMES, st.sampled_from(["*", "?*", "[a-z]*", "../x", "/", "*/*"])), min_size=1, max_size=3
    ),
    links=st.sets(NAMES, max_size=2),
)
def test_nothing_outside_the_planned_targets_is_ever_touched(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], patterns: list[str], links: set[str]
) -> None:
    top = tmp_path_factory.mktemp("any")
    cache, outside = top / "cache", top / "outside"
    put(outside / "precious", "mine")
    shelf = release(cache, "0.7.2.post1")
    for name in names:
        if not (shelf.ops / name).exists():
            shelf.module(name, (), (f"gen_{len(name)}/x.cu",))
    for name in links - names:
        if not (shelf.ops / name).exists():
            (shelf.ops / name).symlink_to(outside)
    before = snapshot(top)
    plan = ask(cache, *patterns, dry_run=True)
    assert snapshot(top) == before
    deed = ask(cache, *patterns)
    assert deed["ok"] == plan["ok"]
    gone = outermost(lost(before, top))
    if not plan["ok"]:
        assert not gone
        return
    planned = {f"cache/{m['version']}/{m['arch']}/cached_ops/{m['name']}" for m in plan["result"]["modules"]}
    planned |= {f"cache/{item['path']}" for item in plan["result"]["generated"] if not item["kept_for"]}
