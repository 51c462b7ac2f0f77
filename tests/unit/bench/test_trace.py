"""Traces: kernels summed in the container, and named on the host."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench import trace
from envgen.bench.facts import RunningService
from envgen.bench.record import RunRecord, start
from envgen.bench.trace import GAPS, kind_of, lines_of, rows_of
from envgen.cli.measure.trace import shown
from envgen.inside import kernels

DATA = Path(__file__).with_name("data")
NAMES = yaml.safe_load((DATA / "kernels.yaml").read_bytes())


@pytest.mark.parametrize("kind", NAMES)
def test_kernels_have_the_names_that_people_use(kind: str) -> None:
    assert {name: kind_of(name) for name in NAMES[kind]} == dict.fromkeys(NAMES[kind], kind)


def event(name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, **more}


def written(folder: Path, events: list[dict[str, Any]], name: str = "rank0.pt.trace.json.gz") -> Path:
    path = folder / name
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def test_of_several_ranks_the_busiest_counts_and_gaps_are_the_rest(tmp_path: Path) -> None:
    events = [
        event("marlin_moe", 0, 40), event("attention", 30, 20), event("marlin_moe", 60, 20, cat="kernel"),
        event("python", 0, 999, cat="python_function"), {"ph": "M", "name": "process_name"},
        event("Memcpy HtoD", 90, 10, cat="gpu_memcpy"),
    ]  # fmt: skip
    path = written(tmp_path, events)
    written(tmp_path, [event("idle", 0, 1)], "rank1.json")
    summary = kernels.answer({"folder": str(tmp_path), "decode": False})
    assert list(tmp_path.iterdir()) == [path] and (summary["device"], summary["file"]) == ("gpu", str(path))
    assert (summary["busy_us"], summary["wall_us"]) == (80.0, 100.0)
    assert summary["kernels"][0] == {"name": "marlin_moe", "calls": 2, "us": 60.0}
    rows = {row.name: (row.share, row.calls, row.mean_us) for row, _ in rows_of(summary)}
    assert rows["MoE"] == (60.0, 2, 30.0) and rows[GAPS["gpu"]] == (20.0, 0, 0.0) and rows["copies"][0] == 10.0


@pytest.mark.parametrize(("kernel", "step"), [("kernel", "gpu_user_annotation"), ("cpu_op", "user_annotation")])
def test_decode_begins_with_the_first_step_that_reads_no_prompt(tmp_path: Path, kernel: str, step: str) -> None:
    """On a GPU the steps of the CPU lie before their kernels, and count for nothing."""
    steps = [
        ("context_1(16)_generation_0(0)", 0),
        ("context_0(0)_generation_1(1)", 40),
        ("context_0(0)_generation_1(1)", 60),
    ]
    events = [event("fmha", start, 10, cat=kernel) for start in (0, 20, 40, 60)]
    events += [event(f"execute_{name}", start, 15, cat=step) for name, start in steps]
    if kernel == "kernel":
        events += [event(f"execute_{steps[1][0]}", 1, 1, cat="user_annotation")]
    written(tmp_path, events)
    for decode, calls, wall in ((False, 4, 70.0), (True, 2, 30.0)):
        summary = kernels.answer({"folder": str(tmp_path), "decode": decode})
        assert (summary["kernels"][0]["calls"], summary["wall_us"]) == (calls, wall)


def test_an_operator_of_the_cpu_counts_without_those_inside_of_it(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 100, cat="cpu_op", tid=1), event("aten::addmm", 10, 60, cat="cpu_op", tid=1),
        event("aten::copy_", 20, 10, cat="cpu_op", tid=1), event("aten::sort", 5, 50, cat="cpu_op", tid=2),
    ]  # fmt: skip
    written(tmp_path, events)
    summary = kernels.answer({"folder": str(tmp_path), "decode": False})
    assert {row["name"]: row["us"] for row in summary["kernels"]} == {
        "aten::linear": 40.0, "aten::addmm": 50.0, "aten::copy_": 10.0, "aten::sort": 50.0,
    }  # fmt: skip
    assert summary["wall_us"] == 100.0 and GAPS["cpu"] in {row.name for row, _ in rows_of(summary)}


def test_a_table_beside_another_has_its_shares_and_what_is_gone(tmp_path: Path) -> None:
    now = {"device": "gpu", "wall_us": 100, "busy_us": 100, "kernels": [{"name": "fmha", "calls": 4, "us": 100}]}
    before = {"device": "gpu", "wall_us": 10, "busy_us": 10, "kernels": [{"name": "marlin_moe", "calls": 1, "us": 10}]}
    lines = lines_of(now, before)
    assert lines[0][-1] == "before" and ("attention", "100.0 %", "4", "25.0", "100", "") in lines
    assert ("MoE", "-", "-", "-", "-", "100.0 %") in lines
    assert lines_of({"kernels": []}) == [("kernel", "share", "calls", "mean, us", "sum, us")]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5)), max_size=20))
def test_busy_time_is_never_more_than_the_wall_or_the_sum(spans: list[tuple[float, float]]) -> None:
    summary = kernels.summed([event("k", start, length) for start, length in spans])
    assert summary["busy_us"] <= summary["wall_us"] + 1e-6
    assert summary["busy_us"] <= sum(length for _, length in spans) + 1e-3


def test_the_logs_word_stands_beside_what_ran() -> None:
    phase = {"device": "gpu", "wall_us": 100, "busy_us": 80, "kernels": [{"name": "marlin_moe", "calls": 4, "us": 80}]}
    lines = list(shown({"phases": {"decode": phase}, "log": ["Using 'MARLIN' Mxfp4 MoE backend\x1b[2J"]}))
    assert lines[0] == "decode: 0.1 ms on the GPU" and any(line.split()[:3] == ["MoE", "80.0", "%"] for line in lines)
    assert "the log's word: Using 'MARLIN' Mxfp4 MoE backend" in lines[-1] and "\x1b" not in lines[-1]


CUTLASS = NAMES["MoE"][3]  # GroupProblemShape
MARLIN = "void marlin_moe_wna16::Marlin<1125899906843648l, 1125899907892736l, 256, 1, 8, 8, true, 4, 2>"


@pytest.mark.parametrize(("log", "kernel", "found"), yaml.safe_load((DATA / "backends.yaml").read_bytes()))
def test_whose_kernels_ran(log: str, kernel: str, found: str) -> None:
    summary = {"log": [log], "phases": {"decode": {"kernels": [{"name": "other"}, {"name": kernel}]}}}
    trace_ = RunRecord(Path("x"), "a", "trace", datetime(2026, 11, 28), {}, {}, "passed", summary)
    rows = list(trace.ran(trace_))
    assert [(row.good, f" ran: {found}, in the trace of 2026-11-28 (" in row.text) for row in rows] == (
        [("not" not in found, True)] if found else []
    )


def test_the_newest_trace_of_the_same_image_and_settings_counts(tmp_path: Path) -> None:
    flags = ["--port", "8000", "--profiler-config", '{"profiler": "torch"}']
    engine = SimpleNamespace(inspect=lambda _id: {"Args": flags})
    profile = SimpleNamespace(secrets=("KEY",))
    service: Any = SimpleNamespace(
        name="serve", deployment=SimpleNamespace(root=tmp_path, engine=engine, profile=profile)
    )
    container: Any = SimpleNamespace(id="c", image_id="sha256:a", env={"A": "1", "KEY": "x"})

    def traced(kernel: str) -> None:
        settings = RunningService(service.deployment, "serve", container).settings()
        phases = {"decode": {"kernels": [{"name": kernel}]}}
        with start(tmp_path / "results", "trace", {}, {}) as run:
            run.end("passed", {"log": ["Using 'MARLIN' Mxfp4 MoE backend"], "settings": settings, "phases": phases})

    assert trace.proof(service, container) == []
    traced(CUTLASS)
    traced(MARLIN)
    flags[:] = flags[:2]  # as it runs without the profiler, with another key
    container.env = {"KEY": "y", "A": "1"}
    (tmp_path / "results" / "29990101T000000.000Z-trace-0.jsonl").write_text("damaged")
    assert [row.good for row in trace.proof(service, container)] == [True]
    for name, value in (("image_id", "sha256:b"), ("env", {"A": "2"})):
        assert trace.proof(service, cast(Any, SimpleNamespace(**{**vars(container), name: value}))) == []
    flags[1] = "8001"
    assert trace.proof(service, container) == []
