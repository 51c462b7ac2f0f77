"""cache clear: exactly the module and what was generated for it, under FlashInfer's locks, and nothing else ever."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jitcache_layouts import RELEASES, SHARED_LOG, Shelf, lost, outermost, put, release, snapshot

from envgen.jitcache.agent import clear as clearing
from envgen.jitcache.agent.main import answer


def ask(root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    """Run the agent's clear on ``root``."""
    document: dict[str, Any] = answer({"operation": "clear", "root": str(root), "patterns": list(patterns), **request})
    return document


def good(root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    document = ask(root, *patterns, **request)
    assert document["ok"], document
    result: dict[str, Any] = document["result"]
    return result


def bad(kind: str, root: Path, *patterns: str, **request: Any) -> dict[str, Any]:
    """The clear must fail as ``kind`` and leave every byte as it was."""
    before = snapshot(root)
    document = ask(root, *patterns, **request)
    assert not document["ok"]
    assert document["kind"] == kind, document
    assert not lost(before, root)
    return document


@pytest.mark.parametrize("version", RELEASES)
def test_a_module_without_generated_sources(tmp_path: Path, version: str) -> None:
    release(tmp_path, version)
    before = snapshot(tmp_path)
    result = good(tmp_path, "page")
    assert outermost(lost(before, tmp_path)) == {f"{version}/121a/cached_ops/page"}
    assert [module["name"] for module in result["modules"]] == ["page"]
    assert result["freed"] == sum(len(data) for key, (_, data) in before.items() if "/page/" in key)


@pytest.mark.parametrize("version", RELEASES)
def test_a_dry_run_changes_nothing_and_says_the_same(tmp_path: Path, version: str) -> None:
    release(tmp_path, version)
    before = snapshot(tmp_path)
    plan = good(tmp_path, "*gemm*", dry_run=True)
    assert snapshot(tmp_path) == before
    deed = good(tmp_path, "*gemm*")
    for key in ("freed", "kept", "vanished"):
        assert plan[key] == deed[key]
    assert [m["name"] for m in plan["modules"]] == [m["name"] for m in deed["modules"]]
    assert [g["path"] for g in plan["generated"]] == [g["path"] for g in deed["generated"]]


@pytest.mark.parametrize(
    ("module", "generated"),
    [
        ("silu_and_mul", {"silu_and_mul.cu"}),
        ("gemm_sm120", {"gen_gemm_sm120"}),
        ("fp4_gemm_cutlass_sm120", {"gen_gemm_sm120_cutlass_fp4"}),
        ("fused_moe_120", {"cutlass_instantiations/120"}),
    ],
)
@pytest.mark.parametrize("version", RELEASES)
def test_generated_sources_go_with_their_module(tmp_path: Path, version: str, module: str, generated: set[str]) -> None:
    release(tmp_path, version)
    before = snapshot(tmp_path)
    if version in SHARED_LOG and module.startswith("fused_moe"):
        generated = set()
    good(tmp_path, module)
    expected = {f"{version}/121a/cached_ops/{module}"} | {f"{version}/121a/generated/{path}" for path in generated}
    assert outermost(lost(before, tmp_path)) == expected


def test_a_shared_generated_path_is_kept_until_the_last_module_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "0.7.2.post1")
    shelf.module("one", (), ("both/a.cu", "one/a.cu"))
    shelf.module("two", (), ("both/b.cu",))
    before = snapshot(tmp_path)
    result = good(tmp_path, "one")
    assert outermost(lost(before, tmp_path)) == {"0.7.2.post1/121a/cached_ops/one", "0.7.2.post1/121a/generated/one"}
    assert result["kept"] == [{"path": "0.7.2.post1/121a/generated/both", "modules": ["one"], "kept_for": ["two"]}]
    good(tmp_path, "two")
    assert not (shelf.base / "generated/both").exists()


def test_cleared_together_a_shared_path_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.module("one", (), ("both/a.cu",))
    shelf.module("two", (), ("both/b.cu",))
    assert good(tmp_path, "one", "two")["kept"] == []
    assert not (shelf.base / "generated/both").exists()


def test_a_name_that_begins_like_another_is_not_sharing(tmp_path: Path) -> None:
    release(tmp_path, "0.7.2.post1")
    assert good(tmp_path, "gemm_sm120")["kept"] == []
    assert (tmp_path / "0.7.2.post1/121a/generated/gen_gemm_sm120_cutlass_fp4").is_dir()


def test_a_neighbour_that_cannot_be_read_counts_as_sharing(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.module("one", (), ("gen/a.cu",))
    (shelf.ops / "two" / "build.ninja").mkdir(parents=True)
    assert good(tmp_path, "one")["kept"][0]["kept_for"] == ["two"]
    assert (shelf.base / "generated/gen/a.cu").exists()


def test_all_versions_and_archs_unless_narrowed(tmp_path: Path) -> None:
    for version in ("0.5.3", "0.7.2.post1"):
        for arch in ("121a", "120f", ""):
            Shelf(tmp_path, version, arch).module("page")
    assert len(good(tmp_path, "page", dry_run=True)["modules"]) == 6
    assert len(good(tmp_path, "page", dry_run=True, version="0.5.3")["modules"]) == 3
    assert len(good(tmp_path, "page", dry_run=True, archs=["121", "121a"])["modules"]) == 2
    before = snapshot(tmp_path)
    good(tmp_path, "page", version="0.5.3", archs=[""])
    assert outermost(lost(before, tmp_path)) == {"0.5.3/cached_ops/page"}


def test_all_keeps_locks_logs_and_what_lies_beside(tmp_path: Path) -> None:
    release(tmp_path, "0.5.3")
    release(tmp_path, "0.7.2.post1")
    good(tmp_path, all=True)
    left = {key for key, (kind, _) in snapshot(tmp_path).items() if kind == "file"}
    assert {"cubins/a/kernel.cubin", "autotune/table.json", "0.5.3/121a/cached_ops/.ninja_log"} <= left
    assert "0.5.3/121a/cached_ops/tmp/page.lock" in left
    assert not [key for key in left if key.endswith((".so", ".o", ".cu"))]


# Names


@pytest.mark.parametrize("name", ["a[bc]d", "x*", "what?", "trailing_", "ümläut", "a b", "a'b\"c$d`e", "-n", "a\nb"])
def test_any_name_can_be_cleared_exactly(tmp_path: Path, name: str) -> None:
    shelf = Shelf(tmp_path)
    for other in (name, "abd", "acd", "x1", "whatx"):
        shelf.module(other)
    before = snapshot(tmp_path)
    good(tmp_path, name)
    assert outermost(lost(before, tmp_path)) == {f"0.5.3/121a/cached_ops/{name}"}


def test_globs_are_case_sensitive_and_leave_housekeeping_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name in ("Page", "page", "pages"):
        shelf.module(name)
    assert [m["name"] for m in good(tmp_path, "page*", dry_run=True)["modules"]] == ["page", "pages"]
    names = [m["name"] for m in good(tmp_path, "*", dry_run=True)["modules"]]
    assert names == ["Page", "page", "pages"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc", "a/b", "cached_ops/page", "page/", "a\0b", "tmp", ".ninja_log", ".envgen-trash-1"],
)
def test_paths_and_housekeeping_are_refused(tmp_path: Path, name: str) -> None:
    release(tmp_path, "0.5.3")
    bad("refused", tmp_path, "page", name)


@pytest.mark.parametrize("word", ["..", "../0.5.3", "/", "0.5.3/121a"])
def test_paths_as_version_or_arch_are_refused(tmp_path: Path, word: str) -> None:
    release(tmp_path, "0.5.3")
    bad("refused", tmp_path, "page", version=word)
    bad("refused", tmp_path, "page", archs=[word])


def test_an_unknown_name_or_an_empty_glob_clears_nothing_of_the_rest(tmp_path: Path) -> None:
    release(tmp_path, "0.5.3")
    document = bad("not_found", tmp_path, "page", "fused_moe_121", "nothing_*")
    assert document["data"]["missing"] == ["fused_moe_121", "nothing_*"]
    assert "fused_moe_120" in document["data"]["names"]
    bad("not_found", tmp_path, "page", version="9.9.9")
    bad("not_found", tmp_path, "page", archs=["999"])
    bad("not_found", tmp_path / "nowhere", "page")


def test_a_file_where_a_module_should_be_is_refused(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    put(shelf.ops / "notes", "mine")
    bad("refused", tmp_path, "notes")
    bad("not_found", tmp_path, "note?")  # a glob passes files by


# Links


def test_links_are_refused_and_their_targets_never_touched(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    put(outside / "precious", "mine")
    (shelf.ops / "linked").symlink_to(outside)
    (shelf.ops / "dangling").symlink_to("nowhere")
    before = snapshot(tmp_path)
    for names in (["linked"], ["page", "linked"], ["dangling"], ["l*"]):
        bad("refused", cache, *names)
    bad("refused", cache, all=True)
    assert snapshot(tmp_path) == before


def test_links_inside_a_module_are_removed_as_links(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    folder = release(cache, "0.5.3") and cache / "0.5.3/121a/cached_ops/page"
    put(outside / "precious", "mine")
    (folder / "out").symlink_to(outside)
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to("../../rope")
    before = snapshot(tmp_path)
    good(cache, "page")
    assert outermost(lost(before, tmp_path)) == {"cache/0.5.3/121a/cached_ops/page"}


@pytest.mark.parametrize("link", ["0.6.0", "0.5.3/120a", "0.5.3/121f/cached_ops"])
def test_a_version_arch_or_cached_ops_that_is_a_link_is_left_out_and_said(tmp_path: Path, link: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    release(cache, "0.5.3")
    Shelf(outside, "x", "121a").module("page")
    Shelf(outside, "x", "121a").module("only_outside")
    target = {"0.6.0": outside / "x", "0.5.3/120a": outside / "x/121a"}.get(link, outside / "x/121a/cached_ops")
    (cache / link).parent.mkdir(parents=True, exist_ok=True)
    (cache / link).symlink_to(target)
    before = snapshot(outside)
    document = bad("not_found", cache, "only_outside")
    assert document["data"]["links"] == [link]
    assert any(link in problem for problem in good(cache, "page")["problems"])
    assert snapshot(outside) == before


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    shelf = release(tmp_path / "big-disk", "0.7.2.post1")
    (tmp_path / "home").symlink_to(tmp_path / "big-disk")
    good(tmp_path / "home", "silu_and_mul")
    assert not (shelf.ops / "silu_and_mul").exists()
    assert not (shelf.base / "generated/silu_and_mul.cu").exists()


@pytest.mark.parametrize("where", ["generated", "generated/gen", "generated/cutlass_instantiations"])
def test_generated_links_are_refused(tmp_path: Path, where: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = Shelf(cache)
    source = "cutlass_instantiations/120/a.cu" if "cutlass" in where else "gen/a.cu"
    shelf.module("one", (), (source,))
    (shelf.base / where).rename(outside)
    (shelf.base / where).symlink_to(outside)
    before = snapshot(tmp_path)
    bad("refused", cache, "one")
    assert not lost(before, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "/etc/generated/passwd",
        "{base}/generated/../cached_ops/rope/rope.so",
        "{base}/generated/./x.cu",
        "{base}/generated//x.cu",
        "{base}/generated/",
        "{base}/generated/..",
        "{root}/0.6.0/121a/generated/other.cu",
        "{base}/generatedx/y.cu",
        "generated/relative.cu",
        "../generated/relative.cu",
    ],
)
def test_sources_outside_of_generated_are_left_alone(tmp_path: Path, source: str) -> None:
    shelf = release(tmp_path, "0.5.3")
    put(tmp_path / "0.6.0/121a/generated/other.cu")
    put(shelf.base / "generatedx/y.cu")
    put(shelf.base / "generated/x.cu")
    put(shelf.base / "generated/relative.cu")
    path = source.format(base=shelf.base, root=tmp_path)
    put(shelf.ops / "page/build.ninja", f"build page/page.o: cuda_compile {path}\n")
    before = snapshot(tmp_path)
    good(tmp_path, "page")
    assert outermost(lost(before, tmp_path)) == {"0.5.3/121a/cached_ops/page"}


def test_a_cache_seen_under_another_mount_finds_its_generated_sources(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.module("one", (), ("gen/a.cu",))
    text = "build one/a.o: cuda_compile /root/.cache/flashinfer/0.5.3/121a/generated/gen/a.cu\n"
    put(shelf.ops / "one/build.ninja", text)
    good(tmp_path, "one")
    assert not (shelf.base / "generated/gen").exists()


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 100, b"build", b"build $", b"build a: b $\n", b"\xff\xfe: : :", b"build a"]
)
def test_a_damaged_build_ninja_does_not_stop_a_clear(tmp_path: Path, data: bytes) -> None:
    shelf = release(tmp_path, "0.5.3")
    put(shelf.ops / "page/build.ninja", data)
    before = snapshot(tmp_path)
    good(tmp_path, "page")
    assert outermost(lost(before, tmp_path)) == {"0.5.3/121a/cached_ops/page"}


def test_something_mounted_into_a_target_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path, "0.5.3")
    point = str(tmp_path / "0.5.3/121a/cached_ops/page/sub").replace(" ", "\\040")
    table = put(tmp_path / "mountinfo", f"36 35 98:0 / {point} rw - ext4 /dev/x rw\n")
    real = clearing.check_mounts
    monkeypatch.setattr(clearing, "check_mounts", lambda paths, root: real(paths, root, str(table)))
    document = bad("refused", tmp_path, "page")
    assert "mounted" in document["message"]
    good(tmp_path, "rope")


# Locks


def hold(path: Path, how: int = fcntl.LOCK_EX) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, how | fcntl.LOCK_NB)
    return fd


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_held_lock_is_refused_and_its_holder_named(tmp_path: Path, dry_run: bool) -> None:
    shelf = release(tmp_path, "0.5.3")
    fd = hold(shelf.ops / "tmp/page.lock")
    try:
        document = bad("refused", tmp_path, "rope", "page", dry_run=dry_run)
        (held,) = document["data"]["held"]
        assert held["lock"] == "0.5.3/121a/cached_ops/tmp/page.lock"
        assert [holder["pid"] for holder in held["holders"]] == [os.getpid()]
        assert held["holders"][0]["command"]
        good(tmp_path, "rope")
    finally:
        os.close(fd)
    good(tmp_path, "page")


def test_a_batch_build_is_refused(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    release(tmp_path, "0.7.2.post1")
    fd = hold(shelf.ops / "tmp/flashinfer_jit.lock")
    try:
        document = bad("refused", tmp_path, "page")
        assert document["data"]["held"][0]["lock"].endswith("flashinfer_jit.lock")
        good(tmp_path, "page", version="0.7.2.post1")  # another version's batch is no hindrance
    finally:
        os.close(fd)


def test_a_lock_inside_a_module_is_respected(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.7.2.post1")
    fd = hold(shelf.ops / "kda_ptx/deep/module.cubin.lock")
    try:
        document = bad("refused", tmp_path, "kda_ptx")
        assert "kda_ptx/deep/module.cubin.lock" in document["data"]["held"][0]["lock"]
    finally:
        os.close(fd)
    good(tmp_path, "kda_ptx")


def test_lock_files_are_made_as_filelock_makes_them_and_never_deleted(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    for path in (shelf.ops / "tmp").iterdir():
        path.unlink()
    (shelf.ops / "tmp").rmdir()
    good(tmp_path, "page")
    assert sorted(p.name for p in (shelf.ops / "tmp").iterdir()) == ["flashinfer_jit.lock", "page.lock"]
    fd = hold(shelf.ops / "tmp/page.lock")  # released
    os.close(fd)


@pytest.mark.parametrize("what", ["tmp", "tmp/page.lock", "tmp/flashinfer_jit.lock"])
def test_lock_files_that_are_links_are_refused(tmp_path: Path, what: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    path = shelf.ops / what
    if path.is_dir():
        path.rename(outside)
    else:
        path.unlink(missing_ok=True)
        put(outside, "mine")
    path.symlink_to(outside)
    before = snapshot(tmp_path)
    bad("refused", cache, "page")
    assert not lost(before, tmp_path)


def test_a_lock_that_is_a_fifo_does_not_hang(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    (shelf.ops / "tmp/page.lock").unlink()
    os.mkfifo(shelf.ops / "tmp/page.lock")
    bad("refused", tmp_path, "page")


def test_a_lock_file_replaced_while_we_took_it_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer filelock releases unlink on release: a lock on the old file would guard nothing."""
    from envgen.jitcache.agent import locks

    put(tmp_path / "page.lock", b"")
    real, swapped = fcntl.flock, []

    def swap(fd: int, how: int) -> None:
        real(fd, how)
        if not swapped:
            swapped.append(os.fstat(fd).st_ino)
            (tmp_path / "keep").hardlink_to(tmp_path / "page.lock")  # or the inode would be used again
            (tmp_path / "page.lock").unlink()
            put(tmp_path / "page.lock", b"")

    monkeypatch.setattr(locks.fcntl, "flock", swap)
    folder = os.open(tmp_path, os.O_RDONLY)
    fd = locks.acquire("page.lock", folder, "page.lock")
    assert os.fstat(fd).st_ino == (tmp_path / "page.lock").stat().st_ino != swapped[0]
    os.close(fd)
    os.close(folder)


# Kills, races, faults


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the agent runs any more."""


@pytest.mark.parametrize("step", range(14))
def test_a_kill_leaves_the_old_module_or_none_and_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    shelf = release(tmp_path, "0.7.2.post1")
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
    assert not [path for path in shelf.ops.iterdir() if path.name.startswith(".envgen")]


def test_trash_of_another_module_is_finished_too(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    put(shelf.ops / ".envgen-trash-00ff/module-0/page.so")
    assert good(tmp_path, "rope", dry_run=True)["leftovers"] == {"count": 1, "bytes": 64}
    assert good(tmp_path, "rope")["leftovers"]["count"] == 1
    assert not (shelf.ops / ".envgen-trash-00ff").exists()


def test_trash_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    put(outside / "precious")
    (shelf.ops / ".envgen-trash-00ff").symlink_to(outside)
    good(cache, "page")
    assert (outside / "precious").exists()


def test_a_module_that_vanishes_meanwhile_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = release(tmp_path, "0.5.3")
    real = clearing.lock_folder

    def vanish(*args: Any, **kwargs: Any) -> Any:
        (shelf.ops / "page").rename(tmp_path / "elsewhere")
        return real(*args, **kwargs)

    monkeypatch.setattr(clearing, "lock_folder", vanish)
    result = good(tmp_path, "page", "rope")
    assert [m["name"] for m in result["vanished"]] == ["page"]
    assert [m["name"] for m in result["modules"]] == ["rope"]


def test_a_folder_exchanged_for_a_link_in_mid_way_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    put(outside / "precious")
    put(shelf.ops / "page/sub/file")
    real, done = os.rename, []

    def exchange(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if not done:
            done.append(1)
            (trash,) = [p for p in shelf.ops.iterdir() if p.name.startswith(".envgen-trash")]
            real(trash / "module-0/sub", tmp_path / "moved")
            (trash / "module-0/sub").symlink_to(outside)

    monkeypatch.setattr(os, "rename", exchange)
    good(cache, "page")
    assert (outside / "precious").exists()


def test_a_rename_that_fails_is_said_and_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_every_other_fault_is_a_document_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path, "0.5.3")

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(clearing, "generated_of", fail)
    document = bad("failed", tmp_path, "page")
    assert document["message"] == "MemoryError: none left"


def test_processes_that_loaded_the_library_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from envgen.jitcache.agent import procs

    shelf = release(tmp_path / "cache", "0.5.3")
    inode = (shelf.ops / "page/page.so").stat().st_ino
    proc = tmp_path / "proc"
    path = "/root/.cache/flashinfer/0.5.3/121a/cached_ops/page/page.so"
    put(proc / "77/maps", f"7f00-7f01 r-xp 00000000 08:01 {inode}   {path} (deleted)\n")
    put(proc / "77/cmdline", b"python3\0-m\0vllm\0")
    put(proc / "78/maps", "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n")
    real = procs.loaded
    monkeypatch.setattr(clearing, "loaded", lambda inodes: real(inodes, str(proc)))
    result = good(tmp_path / "cache", "page")
    assert result["users"] == [{"pid": 77, "command": "python3 -m vllm", "modules": ["page"]}]


# Whatever is asked for: nothing but the planned targets goes

NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
ODD = ["*", "?*", "[a-z]*", "../x", "/", "*/*"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    planned |= {f"cache/{item['path']}" for item in plan["result"]["generated"]}
    assert gone == planned
