"""The other caches: where each lies by its variables, and clearing that takes its own entries alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jitcache_engine import LocalEngine, cache, container
from jitcache_layouts import put, snapshot

from envgen.errors import RefusedError
from envgen.inside.jit import kinds
from envgen.inside.jit.main import answer
from envgen.jitcache import kinds as host

TRITON = "A" * 51 + "7"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variables, _ in kinds.KINDS.values():
        for name in variables:
            monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "me")


def ask(**request: Any) -> list[dict[str, Any]]:
    document = answer({"operation": "kinds", **request})
    assert document["ok"], document
    found: list[dict[str, Any]] = document["result"]["kinds"]
    return found


@pytest.mark.parametrize(
    ("kind", "environ", "place", "variable"),
    [
        ("vllm", {}, "{home}/.cache/vllm", ""),
        ("vllm", {"XDG_CACHE_HOME": "/x"}, "/x/vllm", "XDG_CACHE_HOME"),
        ("vllm", {"XDG_CACHE_HOME": "/x", "VLLM_CACHE_ROOT": "/v"}, "/v", "VLLM_CACHE_ROOT"),
        ("triton", {}, "{home}/.triton/cache", ""),
        ("triton", {"TRITON_CACHE_DIR": "/t"}, "/t", "TRITON_CACHE_DIR"),
        ("inductor", {}, "/tmp/torchinductor_me", ""),
        ("inductor", {"TMPDIR": "/big"}, "/big/torchinductor_me", ""),
        ("torch-extensions", {}, "{home}/.cache/torch_extensions", ""),
        ("tvm-ffi", {"TVM_FFI_CACHE_DIR": "/f"}, "/f", "TVM_FFI_CACHE_DIR"),
        ("cute-dsl", {}, "/tmp/me/cutlass_python_cache", ""),
        ("deep-gemm", {"VLLM_CACHE_ROOT": "/v"}, "/v/deep_gemm", "VLLM_CACHE_ROOT"),
        ("deep-gemm", {"VLLM_CACHE_ROOT": "/v", "DG_JIT_CACHE_DIR": "/d"}, "/d", "DG_JIT_CACHE_DIR"),
        ("driver", {}, "{home}/.nv/ComputeCache", ""),
    ],
)
def test_where_each_lies(tmp_path: Path, kind: str, environ: dict[str, str], place: str, variable: str) -> None:
    (one,) = ask(kinds=[kind], environ=environ)
    assert (one["path"], one["moved_by"]) == (place.format(home=tmp_path / "home"), variable)
    assert not one["exists"]


def test_sizes(tmp_path: Path) -> None:
    put(tmp_path / "home/.triton/cache" / TRITON / "kernel.cubin", "x" * 100)
    found = {one["kind"]: one for one in ask()}
    assert (found["triton"]["bytes"], found["triton"]["files"], found["triton"]["exists"]) == (100, 1, True)
    assert set(found) == set(kinds.KINDS)


@pytest.mark.parametrize(
    ("kind", "variable", "own"),
    [
        ("vllm", "VLLM_CACHE_ROOT", ["torch_compile_cache", "torch_aot_compile", "modelinfos"]),
        ("triton", "TRITON_CACHE_DIR", [TRITON, "0123456789abcdef" * 4]),
        ("inductor", "TORCHINDUCTOR_CACHE_DIR", ["ab", "z7", "fxgraph", "aotautograd"]),
    ],
)
def test_clearing_takes_entries_alone(tmp_path: Path, kind: str, variable: str, own: list[str]) -> None:
    """The variable may point at a home folder: what does not look like an entry stays."""
    home = tmp_path / "pointed"
    for name in own:
        put(home / name / "file")
    others = [".ssh", "Documents", "assets", "abc", "A" * 53, "AB"]
    for name in others:
        put(home / name / "file")
    put(home / own[0][:-1] / "file")
    before = snapshot(home)
    (plan,) = ask(kinds=[kind], clear=True, dry_run=True, environ={variable: str(home)})
    assert snapshot(home) == before
    assert plan["entries"] == sorted(own)
    (deed,) = ask(kinds=[kind], clear=True, environ={variable: str(home)})
    assert deed["errors"] == []
    assert sorted(path.name for path in home.iterdir()) == sorted([*others, own[0][:-1]])


def test_links_among_the_entries_stay(tmp_path: Path) -> None:
    put(tmp_path / "victim/file")
    home = tmp_path / "cache"
    home.mkdir()
    (home / TRITON).symlink_to(tmp_path / "victim")
    (one,) = ask(kinds=["triton"], clear=True, environ={"TRITON_CACHE_DIR": str(home)})
    assert one["entries"] == []
    assert (tmp_path / "victim/file").exists()


def test_what_a_killed_clear_left_goes_with_the_next(tmp_path: Path) -> None:
    put(tmp_path / "cache/.envgen-trash-0/x")
    ask(kinds=["triton"], clear=True, environ={"TRITON_CACHE_DIR": str(tmp_path / "cache")})
    assert not list((tmp_path / "cache").iterdir())


def test_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(tmp_path / "cache" / TRITON / "kernel.so")
    before = snapshot(tmp_path)
    me = os.getpid()
    monkeypatch.setattr(kinds.os, "getpid", lambda: -1)
    with file.open("rb"):
        document = answer(
            {"operation": "kinds", "kinds": ["triton"], "clear": True,
             "environ": {"TRITON_CACHE_DIR": str(tmp_path / "cache")}}
        )  # fmt: skip
    assert document["kind"] == "refused"
    assert f"pid {me} uses it" in document["message"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", sorted(set(kinds.KINDS) - set(kinds.ENTRIES)))
def test_the_rest_is_only_listed(kind: str) -> None:
    assert answer({"operation": "kinds", "kinds": [kind], "clear": True})["kind"] == "refused"


def test_a_service_is_asked_as_its_own_user(tmp_path: Path) -> None:
    """Default places lie in the home of whoever the service is, not in root's."""
    engine = LocalEngine(tmp_path, [container("c1", service="dev")])
    host.kinds(cache(tmp_path, engine), ["triton"])
    assert engine.asked == [("c1", "")]


def test_on_the_host(tmp_path: Path) -> None:
    """Without a service: in a container of the image, with the caches that exist."""
    engine = LocalEngine(tmp_path)
    engine.volumes_ = {"demo-dev-cache-triton"}
    text = "triton: {path: /t}, vllm: {path: /v}, flashinfer: {path: /root/.cache/flashinfer, host: nowhere}"
    found = host.kinds(cache(tmp_path, engine, text), ["triton"])
    assert [(one.kind, one.path, one.moved_by) for one in found] == [("triton", "/t", "TRITON_CACHE_DIR")]
    assert [(mount.source, mount.target) for mount in engine.mounts] == [("demo-dev-cache-triton", "/t")]
    with pytest.raises(RefusedError, match="only listed"):
        host.kinds(cache(tmp_path, engine, text), ["driver"], clear=True)
