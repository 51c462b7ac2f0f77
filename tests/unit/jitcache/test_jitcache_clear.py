"""cache clear: exactly the module and what was generated for it, and nothing else ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jitcache_asking import good
from jitcache_layouts import RELEASES, SHARED_LOG, Shelf, lost, outermost, release, snapshot


@pytest.mark.parametrize("version", RELEASES)
def test_a_module_without_generated_sources(tmp_path: Path, version: str) -> None:
    release(tmp_path, version)
    before = snapshot(tmp_path)
    result = good(tmp_path, "page")
    assert outermost(lost(before, tmp_path)) == {f"{version}/121a/cached_ops/page"}
    assert [module["name"] for module in result["modules"]] == ["page"]
    assert result["freed"] == sum(len(data) for key, (_, data) in before.items() if "/page/" in key)


def kept(result: dict[str, Any]) -> dict[str, list[str]]:
    """What stays, and for which modules."""
    return {item["path"]: item["kept_for"] for item in result["generated"] if item["kept_for"]}


@pytest.mark.parametrize("version", RELEASES)
def test_a_dry_run_changes_nothing_and_says_the_same(tmp_path: Path, version: str) -> None:
    release(tmp_path, version)
    before = snapshot(tmp_path)
    plan = good(tmp_path, "*gemm*", dry_run=True)
    assert snapshot(tmp_path) == before
    deed = good(tmp_path, "*gemm*")
    assert plan["freed"] == deed["freed"]
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
    assert kept(result) == {"0.7.2.post1/121a/generated/both": ["two"]}
    good(tmp_path, "two")
    assert not (shelf.base / "generated/both").exists()


def test_cleared_together_a_shared_path_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.module("one", (), ("both/a.cu",))
    shelf.module("two", (), ("both/b.cu",))
    assert kept(good(tmp_path, "one", "two")) == {}
    assert not (shelf.base / "generated/both").exists()


def test_a_name_that_begins_like_another_is_not_sharing(tmp_path: Path) -> None:
    release(tmp_path, "0.7.2.post1")
    assert kept(good(tmp_path, "gemm_sm120")) == {}
    assert (tmp_path / "0.7.2.post1/121a/generated/gen_gemm_sm120_cutlass_fp4").is_dir()


def test_a_neighbour_that_cannot_be_read_counts_as_sharing(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.module("one", (), ("gen/a.cu",))
    (shelf.ops / "two" / "build.ninja").mkdir(parents=True)
    assert list(kept(good(tmp_path, "one")).values()) == [["two"]]
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
