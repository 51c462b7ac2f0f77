"""Figures of others: what is read, how it is marked, and that no text breaks the reader."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import ResultsError, UsageError
from envgen.results import imported, store
from envgen.results.figures import table
from envgen.results.foreign import parse
from envgen.results.imported import Foreign
from envgen.results.model import METRICS, Sample, frozen

TOP = Path(__file__).parents[3]
HISTORY = TOP / "examples" / "history" / "gpt-oss-120b-gb10.yaml"
DAY = datetime(2026, 1, 9, tzinfo=timezone.utc)


def read(tmp_path: Path, name: str, text: str, when: datetime | None = None) -> list[Foreign]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return parse(path, when, "")


def cells(run: Foreign, metric: str) -> dict[str, tuple[float, float | None, int]]:
    """name -> mean, deviation, n"""
    found = table([Sample(0.0, frozen(dict(data))) for data in run.samples]).get(metric, {})
    return {
        cell.name(METRICS[metric]): (series.mean, None if series.sd != series.sd else series.sd, series.n)
        for cell, series in found.items()
    }


def test_the_shipped_history_holds_the_figures_and_their_competitors() -> None:
    runs = {run.label: run for run in parse(HISTORY, None, "")}
    assert len(runs) == 15
    baseline = runs["vLLM main: Triton attention, Marlin"]
    assert baseline.started == datetime(2026, 1, 9, 16, 25, 1, tzinfo=timezone.utc)
    assert cells(baseline, "decode_tps")["pp2048 tg32"] == (31.58, 0.06, 10)
    assert cells(baseline, "prefill_tps")["pp512"] == (2209.10, 97.25, 10)
    assert cells(runs["CUTLASS FP8xFP4, FlashInfer attention"], "prefill_tps")["pp2048"][::2] == (
        pytest.approx((5699.57 + 5675.14) / 2),
        6,
    )
    assert cells(runs["llama.cpp f5acfb2ff (llama-bench)"], "decode_tps") == {
        "pp0 tg32": (57.85, 0.44, 0),
        "pp0 tg32 @ d4096": (54.81, 0.30, 0),
    }
    assert cells(runs["SGLang"], "decode_tps") == {"pp? tg?": (52.37, None, 0)}
    assert all(data["unit"] == "aggregate" for run in runs.values() for data in run.samples)


BENCHY = """\
## On {date}

| model               |                test |       t/s (total) |         t/s (req) |       peak t/s |      ttfr (ms) |   e2e_ttft (ms) |
|:--------------------|--------------------:|------------------:|------------------:|---------------:|---------------:|----------------:|
| openai/gpt-oss-120b |         pp2048 (c1) |   7803.68 ± 63.74 |   7803.68 ± 63.74 |                |  292.86 ± 2.15 |   337.08 ± 2.48 |
| openai/gpt-oss-120b |           tg32 (c1) |      74.83 ± 0.59 |      74.83 ± 0.59 |   77.54 ± 0.62 |                |                 |
| openai/gpt-oss-120b |           tg32 (c2) |     111.27 ± 3.61 |      56.20 ± 1.27 |  115.25 ± 3.74 |                |                 |
| openai/gpt-oss-120b | ctx_pp @ d4096 (c1) |   8816.20 ± 55.40 |   8816.20 ± 55.40 |                |  495.02 ± 2.91 |   540.31 ± 1.64 |
| openai/gpt-oss-120b | pp2048 @ d4096 (c1) | 5918.71 ± 1447.23 | 5918.71 ± 1447.23 |                | 403.38 ± 11.24 |  432.07 ± 90.02 |
| openai/gpt-oss-120b |   tg32 @ d4096 (c1) |      65.27 ± 9.85 |      65.27 ± 9.85 |  67.62 ± 10.21 |                |                 |

llama-benchy (0.2.2)
date: 2026-02-06 16:36:05 | latency mode: generation
"""  # noqa: E501


def test_llama_benchys_markdown(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "a.md", BENCHY)
    assert run.started == datetime(2026, 2, 6, 16, 36, 5, tzinfo=timezone.utc)
    assert cells(run, "decode_tps") == {
        "pp? tg32 c2": (111.27, 3.61, 0),  # its own pp row is missing
        "pp2048 tg32": (74.83, 0.59, 0),
        "pp2048 tg32 @ d4096": (65.27, 9.85, 0),
    }
    assert cells(run, "ttfr_ms") == {"pp2048": (292.86, 2.15, 0), "pp2048 @ d4096": (403.38, 11.24, 0)}
    assert cells(run, "ttft_ms")["pp2048"] == (337.08, 2.48, 0)


LLAMA_BENCH = """\
| model | size | params | backend | ngl | test | t/s |
| --- | ---: | ---: | --- | --: | ---: | ---: |
| gpt-oss 120B MXFP4 | 59.02 GiB | 116.83 B | CUDA | 99 | pp2048 | 2449.83 ± 10.27 |
| gpt-oss 120B MXFP4 | 59.02 GiB | 116.83 B | CUDA | 99 | tg32 | 57.85 ± 0.44 |
"""


def test_llama_bench_generates_from_an_empty_context(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "bench.md", LLAMA_BENCH, DAY)
    assert (run.label, run.started) == ("bench", DAY)
    assert cells(run, "decode_tps") == {"pp0 tg32": (57.85, 0.44, 0)}
    assert cells(run, "prefill_tps") == {"pp2048": (2449.83, 10.27, 0)}


CONFIGS = """\
# Notes

## Baselines (2026-01-11)

| Config | tg=32 | **tg128** (tok/s) | pp2048 | Notes |
|---|---|---|---|---|
| **Upstream** \U0001f389 | **31.6** | - | ~4,341 | 10 runs |
| Eagle3 | TODO | 22.1 ± 0.1 | - | |
| nothing | - | N/A | | |

## Undated

| Config | What |
|---|---|
| x | y |
"""


def test_a_matrix_of_configurations(tmp_path: Path) -> None:
    upstream, eagle = read(tmp_path, "c.md", CONFIGS)
    assert (upstream.label, eagle.label, upstream.started.day) == ("Upstream", "Eagle3", 11)
    assert cells(upstream, "decode_tps") == {"pp2048 tg32": (31.6, None, 0)}
    assert cells(upstream, "prefill_tps") == {"pp2048": (4341.0, None, 0)}
    assert cells(eagle, "decode_tps") == {"pp2048 tg128": (22.1, 0.1, 0)}


def report(values: list[float], concurrency: int = 1) -> dict[str, Any]:
    metric = {"mean": sum(values) / len(values), "std": 0.1, "values": values}
    run = {
        "concurrency": concurrency, "context_size": 0, "prompt_size": 512, "response_size": 32,
        "is_context_prefill_phase": False, "pp_throughput": metric, "tg_throughput": metric, "ttfr": metric,
        "e2e_ttft": None,
    }  # fmt: skip
    return {
        "version": "0.4.0", "timestamp": "2026-02-07 19:09:00Z", "latency_mode": "api", "latency_ms": 1.2,
        "model": "tiny", "prefix_caching_enabled": False, "max_concurrency": concurrency,
        "benchmarks": [run, {**run, "is_context_prefill_phase": True, "prompt_size": 9}],
    }  # fmt: skip


def test_llama_benchys_json_keeps_every_value(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "r.json", json.dumps(report([10.0, 12.0, 14.0])))
    assert run.started == datetime(2026, 2, 7, 19, 9, tzinfo=timezone.utc)
    assert cells(run, "decode_tps") == {"pp512 tg32": (12.0, 2.0, 3)}
    assert run.environment["versions"] == {"llama-benchy": "0.4.0"}
    (parallel,) = read(tmp_path, "r.json", json.dumps(report([10.0, 12.0], 2)))
    units = {name: data["unit"] for data in parallel.samples for name in data if name in METRICS}
    assert units == {"prefill_tps": "repeat", "decode_tps": "repeat", "ttfr_ms": "request"}


def test_llama_benchys_csv(tmp_path: Path) -> None:
    text = "model,test_name,t_s_mean,t_s_std,ttfr_mean,ttfr_std\nm,pp512,987.1,1.1,20.5,0.2\nm,tg32,49.9,,,\n"
    (run,) = read(tmp_path, "r.csv", text, DAY)
    assert cells(run, "decode_tps") == {"pp512 tg32": (49.9, None, 0)}
    assert cells(run, "ttfr_ms") == {"pp512": (20.5, 0.2, 0)}


DATA = Path(__file__).parent / "data"


def test_what_llama_benchy_really_wrote(tmp_path: Path) -> None:
    (run,) = parse(DATA / "llama-benchy-0.4.0.json", None, "")
    assert (run.environment["model"], run.started.date().isoformat()) == ("tiny", "2026-11-21")
    decode = cells(run, "decode_tps")
    assert {name: n for name, (_mean, _sd, n) in decode.items()} == {"pp64 tg16": 4, "pp128 tg16": 4}
    (run,) = parse(DATA / "llama-benchy-0.4.0.md", DAY, "")  # it writes no date there
    assert cells(run, "decode_tps")["pp64 tg16"] == (100.77, 28.94, 0)
    assert cells(run, "prefill_tps") == {"pp64": (8930.91, 976.64, 0), "pp128": (12610.94, 5381.04, 0)}
    # On this server the CSV held no prompt's row, so nothing tells what its two rows of tg16 followed.
    (run,) = parse(DATA / "llama-benchy-0.4.0.csv", DAY, "")
    assert list(cells(run, "decode_tps")) == ["pp? tg16"]


HEAD = "history: 1\nsource: notes\nruns:\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.md", "no tables here", "no figures were found"),
        ("a.md", LLAMA_BENCH, "a.md:1:1: this table doesn't say when"),
        ("a.json", "{", "this is no JSON"),
        ("a.json", "[]", "no list `benchmarks`"),
        ("a.json", '{"benchmarks": [1]}', "benchmarks[0]: a benchmark is an object"),
        ("a.csv", "a,b\n1,2\n", "no columns test_name"),
        ("a.yaml", "history: 2\n", "no history file"),
        ("a.yaml", "a: &x 1\nb: *x\n", "a.yaml:2:1: this is no YAML: aliases are not read"),
        ("a.yaml", "{", "this is no YAML"),
        ("a.yaml", "history: 1\nruns: []\n", "source: must say where"),
        ("a.yaml", HEAD + "- {label: x, figures: [{decode_tps: 1}]}", "doesn't say when"),
        ("a.yaml", HEAD + "- {label: x, date: soon, figures: [{decode_tps: 1}]}", "runs[0].date: must be a date"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{decode_tps: fast}]}", "figures[0].decode_tps"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{decode_tps: [1, 2, 3]}]}", "[mean, standard"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{decode: 1}]}", "unknown key 'decode'"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{prompt: 5}]}", "holds no figure"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{prompt: -5}]}", "a whole number"),
        ("a.yaml", HEAD + "- {label: x, date: 2026-01-09, figures: [{decode_tps: .nan}]}", "must be a number"),
        ("a.yaml", HEAD + "- {name: x}", "unknown key 'name'"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ResultsError) as caught:
        read(tmp_path, name, text)
    assert said in str(caught.value) and str(tmp_path / name) in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        parse(tmp_path / "none.md", None, "")
    (tmp_path / "x.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultsError, match="no UTF-8"):
        parse(tmp_path / "x.md", None, "")
    with pytest.raises(ResultsError, match="can't be read"):
        parse(tmp_path, None, "")


TABLE = st.lists(st.lists(st.sampled_from(["test", "t/s", "---", "pp512", "tg32", "1 ± 2", "x", "", "±", "tg=5", "mean", "9" * 30]), max_size=5).map(lambda row: "|" + "|".join(row) + "|"), max_size=6).map("\n".join)  # fmt: skip  # noqa: E501
YAML = st.text("histor:1\n-[]{}&*!'\"runslabefgd 0.: ,", max_size=120)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text() | TABLE | YAML.map(lambda t: HEAD + t), name=st.sampled_from(["a.md", "a.json", "a.csv", "a.yaml"])
)
def test_no_text_breaks_the_reader(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        runs = parse(path, DAY, "")
    except ResultsError:
        return
    assert all(run.samples for run in runs)


def test_an_imported_run_is_marked_and_imported_once(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for again in (False, True):
        for run in parse(HISTORY, None, ""):
            path, new = imported.write(folder, run, imported.source(HISTORY, ""))
            assert new != again
            record = store.load(path)
            assert (record.kind, record.outcome, record.started) == ("imported", "imported", run.started)
            mark = record.environment["imported"]
            assert (mark["label"], mark["file"]) == (run.label, HISTORY.name)
            assert len(mark["sha256"]) == 64
            assert len(record.samples) == len(run.samples)
    assert len(list(folder.iterdir())) == 15
