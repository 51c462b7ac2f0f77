"""cache modules: what earlier runs used, from FlashInfer's records and from logs of its releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from jitcache_engine import PROJECT, ROOT, LocalEngine
from jitcache_layouts import Shelf, put

from envgen.__main__ import main
from envgen.inside.jit.main import answer, named_in

ATTENTION = (
    "batch_prefill_with_attention_sink_kv_cache_dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_dtype_idx_i32_"
    "head_dim_qk_64_head_dim_vo_64_use_swa_True_"
)
STAMP = "2026-11-22 07:00:00,123 - INFO - core.py:594 - flashinfer.jit: "


def used(root: Path) -> list[str]:
    document = answer({"operation": "used", "root": str(root)})
    assert document["ok"] and document["result"]["problems"] == [], document
    found: list[str] = document["result"]["names"]
    return found


def test_the_records_of_all_versions_and_of_what_is_gone(tmp_path: Path) -> None:
    old, new = Shelf(tmp_path, "0.5.3"), Shelf(tmp_path, "0.7.2.post1")
    old.module("page")
    new.module("rope")
    put(old.ops / f"tmp/{ATTENTION}.lock", "")  # cleared since
    put(old.ops / "tmp/flashinfer_jit.lock", "")  # a batch build's
    put(old.ops / "tmp/--yes.lock", "")
    put(
        new.base / "flashinfer_jit.log",
        f"{STAMP}Building JIT module norm; this can take several minutes on first use.\n",
    )
    assert used(tmp_path) == [ATTENTION, "norm", "page", "rope"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"{STAMP}Building JIT module {ATTENTION}; this can take several minutes on first use.", {ATTENTION}),
        # ninja, printed or of a failed build: 0.5.3 to 0.6.0, then later releases.
        ("[1/3] /usr/local/cuda/bin/nvcc -O3 -c /x/csrc/page.cu -o page/page.cuda.o", {"page"}),
        ("[3/3] c++ page/page.cuda.o page/b.cuda.o -shared -lcuda -o page/page.so", {"page"}),
        ("[1/9] nvcc -c /x/rope.cu -o /root/.cache/flashinfer/0.7.2/121a/cached_ops/rope/csrc_rope.cuda.o", {"rope"}),
        ("ninja: Entering directory `/root/.cache/flashinfer/0.5.3/121a/cached_ops'", set()),
        ("waiting for /root/.cache/flashinfer/0.5.3/121a/cached_ops/tmp/page.lock", set()),
        ("[7/99] nvcc -c a.cu -o CMakeFiles/_C.dir/csrc/a.cu.o", set()),
        ("INFO 11-22 07:00:00 [gpu_model_runner.py:100] Using FlashInfer page attention", set()),
        ("Building JIT module --force; this can take several minutes", set()),
    ],
)
def test_names_in_a_log(line: str, names: set[str]) -> None:
    assert named_in(line) == names


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    put(tmp_path / "project/envgen.yaml", PROJECT.format(caches=f"flashinfer: {{path: {ROOT}, namespace: false}}"))
    engine = LocalEngine(tmp_path / "cache")
    monkeypatch.setattr("envgen.deployment.connect", lambda *_: engine)
    monkeypatch.chdir(tmp_path / "project")
    return engine


def test_one_name_a_line(project: LocalEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = Shelf(tmp_path / "cache")
    for name in ("rope", "page"):
        shelf.module(name)
    for words in ([], ["--from-log"]):
        assert main(["cache", "modules", *words]) == 0
        assert capsys.readouterr().out == "page\nrope\n"


def test_of_a_log_without_asking_an_engine(
    project: LocalEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "old.log", b"\xff\n" + f"{STAMP}Building JIT module page; this\r\n".encode())
    assert main(["cache", "modules", "--from-log", str(tmp_path / "old.log")]) == 0
    assert capsys.readouterr().out == "page\n"
    assert not project.asked


def test_nothing_was_used(project: LocalEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Shelf(tmp_path / "cache")
    assert main(["cache", "modules"]) == 1
    assert "no module was compiled or loaded in this cache yet" in capsys.readouterr().err
    project.volumes_.clear()
    assert main(["cache", "modules"]) == 1
    put(tmp_path / "empty.log", "")
    assert main(["cache", "modules", "--from-log", str(tmp_path / "empty.log")]) == 1
    assert f"{tmp_path / 'empty.log'} names no module" in capsys.readouterr().err
    assert main(["cache", "modules", "--from-log", str(tmp_path / "none.log")]) == 2
