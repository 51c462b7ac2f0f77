"""cache clear: links, paths, mounts and damaged files lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from jitcache_asking import bad, good
from jitcache_layouts import Shelf, lost, outermost, put, release, snapshot


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc", "a/b", "cached_ops/page", "page/", "a\0b", "tmp", ".ninja_log", ".envgen-work-1"],
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


@pytest.mark.parametrize("link", ["0.6.0", "0.5.3/120a", "0.5.3/121f/cached_ops"])
def test_a_version_arch_or_cached_ops_that_is_a_link_is_left_out_and_noted(tmp_path: Path, link: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    release(cache, "0.5.3")
    Shelf(outside, "x", "121a").module("page")
    Shelf(outside, "x", "121a").module("only_outside")
    target = {"0.6.0": outside / "x", "0.5.3/120a": outside / "x/121a"}.get(link, outside / "x/121a/cached_ops")
    (cache / link).parent.mkdir(parents=True, exist_ok=True)
    (cache / link).symlink_to(target)
    before = snapshot(outside)
    bad("not_found", cache, "only_outside")
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
