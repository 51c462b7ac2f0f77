"""The matrix and the page of results: what was measured, what was not, and nothing that runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.bench import matrix, page
from envgen.bench.compare import MatrixCell
from envgen.bench.record import RunRecord
from envgen.cli.run import up

TOP = Path(__file__).resolve().parents[3]
DAY = datetime(2026, 11, 1, tzinfo=timezone.utc)


def bench(ident: str, day: int, decode: float, variant: str = "", **more: Any) -> RunRecord:
    head = {"prompt_tokens": 2048, "output_tokens": 32, "context_tokens": 0, "concurrency": 1}
    environment = {
        "profile": "prod", "service": "serve", "variant": variant, "versions": {"vllm": "0.33.0"},
        "image": {"id": "sha256:aa"}, "lock": "b" * 64, "flags": ["--port", "8000"], "kernels": ["Using TRITON"],
        "gpu": {"name": "GB10", "driver": "580.142"}, "sources": {"vllm": "vllm==0.33.0"}, **more,
    }  # fmt: skip
    medians = {"decode_tps": decode, "prefill_tps": 2000.0, "ttft_ms": 50.0}
    cells = [{"test": "pp2048 tg32", **head, **{name: {"median": value} for name, value in medians.items()}}]
    cells.append({"test": "pp2048 tg32 c8", **head, "concurrency": 8, "total_tps": {"median": decode * 4}})
    summary = {"cells": cells}
    return RunRecord(Path("x"), ident, "bench", DAY + timedelta(days=day), environment, {}, "passed", summary)


def test_a_variant_keeps_its_best_and_its_newest_row_and_what_was_never_measured_says_todo() -> None:
    runs = [bench("a", 1, 40), bench("b", 2, 61), bench("c", 3, 52), bench("d", 3, 30, "eager")]
    graded = RunRecord(Path("x"), "e", "answers", DAY, runs[1].environment, {}, "same", {})
    rows = matrix.rows_of([*runs, graded], "prod", "serve", ["plain", "cutlass", "eager"])
    assert [(row.variant, row.run, row.rank, row.decode_tps) for row in rows] == [
        ("plain", "b", "best", 61), ("plain", "c", "newest", 52), ("cutlass", "", "", None),
        ("eager", "d", "best and newest", 30),
    ]  # fmt: skip
    assert rows[0].prefill_tps == 2000 and rows[0].answers == "same" and rows[3].answers == ""
    assert rows[0].start == "envgen up serve -p prod" and rows[3].start.endswith("--variant eager")
    typed = up.command.make_context("up", rows[3].start.split()[2:]).params
    assert (typed["names"], typed["profile"], typed["variant"]) == (("serve",), "prod", ("eager",))
    assert rows[2].cells()[4:8] == ("TODO",) * 4 and rows[0].made_of["driver"] == "580.142"
    text = matrix.markdown("prod", rows, ["llama.cpp: 57.85"])
    assert "| plain | 0.33.0 | 2026-11-03 | pp2048 tg32 | 2,000.0 | 61.0 | 50.0 | same | best | b |" in text
    assert "- b: `envgen up serve -p prod`, commit unknown, lock bbbbbbbbbbbb" in text
    assert matrix.rows_of(runs, "prod", "other", []) == []
    unread = replace(runs[3], summary={"cells": [{"test": "pp512 tg32", "ttft_ms": {"median": 98.3}}]})
    (row,) = matrix.rows_of([unread], "prod", "serve", [])  # each reply arrived in one piece
    assert row.cells()[3:7] == ("pp512 tg32", "-", "-", "98.3")
    for fault, kept in (
        ({"failed": 2, "fault": "503"}, []),
        ({"failed": 0, "fault": "a decode rate in 1 of 3 runs"}, [None]),
    ):
        lucky = bench("f", 9, 900)
        lucky.summary["cells"][0].update(fault)
        assert [row.decode_tps for row in matrix.rows_of([lucky], "prod", "serve", []) if "c8" not in row.test] == kept
    (evil,) = matrix.rows_of([bench("a", 1, 40, "x; reboot")], "prod", "serve", [])
    assert evil.start == "envgen up serve -p prod --variant 'x; reboot'"


def test_a_row_keeps_what_starts_it_again() -> None:
    """Its --set and --file, the project's commit and its lock; what ran with settings of nobody's command has none."""
    shown = ["max-num-seqs=1", 'build.args={"a": "b c"}']
    sets = [f"services.serve.args.{shown[0]}", shown[1], "services.serve.ready.expect.moe=null"]
    runs = [
        bench("a", 1, 40), bench("b", 2, 61, sets=sets, file="my own.yaml", sources={"project": "c0ffee"}),
        bench("c", 3, 70, "eager", differs=True),
    ]  # fmt: skip
    rows = {row.run: row for row in matrix.rows_of(runs, "prod", "serve", ["plain"])}
    assert rows["b"].variant == f"plain, {shown[0]}, {shown[1]}" and rows["a"].rank == "best and newest"
    typed = up.command.make_context("up", shlex.split(rows["b"].start)[2:]).params
    assert (typed["names"], typed["file"], typed["sets"]) == (("serve",), Path("my own.yaml"), tuple(sets))
    assert rows["c"].variant == "eager (other settings)" and rows["c"].start == ""
    text = matrix.markdown("prod", list(rows.values()), [])
    assert f"- b: `{rows['b'].start}`, commit c0ffee, lock" in text and "- c: settings that the project" in text


@pytest.mark.parametrize(
    ("project", "profile", "variants"),
    [
        (".", "prod", ["plain", "eagle3", "ngram", "debug", "cutlass", "flashinfer"]),
        ("examples/from-source", "fork", ["plain", "eagle3", "debug", "baseline", "marlin", "moe", "moe_qkv_o"]),
    ],
)
def test_the_shipped_matrix_has_each_variant_and_the_targets_before_anything_was_measured(
    project: str, profile: str, variants: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a sweep without measuring prints it, and as the page shows it."""
    file = str(shutil.copy(TOP / project / "envgen.yaml", tmp_path))
    assert main(["sweep", "serve", "--dry-run", "-f", file, "-p", profile]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.endswith("TODO")]
    assert {*variants} <= {row[0] for row in rows} and all(row[1:] == ["pp2048", "tg32", *["TODO"] * 4] for row in rows)
    assert any(line.startswith("target llama.cpp: tg32 57.85, pp2048 2449.83 (llama-bench, ") for line in lines)
    assert any(line.startswith("target SGLang: decode 52.37, first_token 49.87 (") for line in lines)
    assert [line.partition(" (")[0].rpartition(" ")[2] for line in lines if "recipe-registry" in line] == [
        "59.5",
        "58.82",
    ]
    assert (project == ".") is any("llama.cpp at 4096: tg32 54.81, pp2048 2293.59 @ d4096 (" in line for line in lines)

    assert main(["results", "html", "serve", "-f", file, "-p", profile, "--json"]) == 0
    html = Path(json.loads(capsys.readouterr().out)["file"]).read_text(encoding="utf-8")
    assert html.count("TODO") >= 4 * len(rows) and all(variant in html for variant in variants)
    assert (
        "llama.cpp: tg32 57.85, pp2048 2449.83 (llama-bench, build f5acfb2ff" in html and "SGLang: decode 52.37" in html
    )


def test_a_matrix_has_the_variants_and_lengths_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notes' columns, and their pairs; `--missing` is what is TODO there."""
    file = str(shutil.copy(TOP / "examples/from-source/envgen.yaml", tmp_path))
    asked = ["sweep", "serve", "-f", file, "--variants", "marlin+eagle3,plain", "--tg", "32,128,256"]
    assert main([*asked, "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["variant"] for row in rows][-3:] == ["marlin+eagle3"] * 3 and len(rows) == 3 * 8
    assert [row["test"] for row in rows][:3] == ["pp2048 tg32", "pp2048 tg128", "pp2048 tg256"]
    assert main([*asked[:4], "--dry-run", "--variants", "nobody"]) == 2
    assert "no variant 'nobody'" in capsys.readouterr().err
    measured = matrix.rows_of([bench("a", 1, 40)], "prod", "serve", ["plain"], ["pp2048 tg32", "pp2048 tg128"])
    assert [(row.test, row.run) for row in measured] == [("pp2048 tg32", "a"), ("pp2048 tg128", "")]


class Tags(HTMLParser):
    """What a browser would see: elements, and attributes that could act."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m{{ 7*7 }}'


def rendered(text: str) -> str:
    answers = {"rows": [{"verdict": text, "name": text, "seen": text}]}
    kernels = [{"name": text, "calls": 1, "us": 5.0}]
    phases = {text: {"kernels": kernels, "wall_us": 10.0, "busy_us": 5.0, "device": text}}
    runs = [
        bench("a", 1, 40, text, kernels=[text], flags=[text], lock=text),
        bench("b", 2, 50),
        RunRecord(Path("x"), text, "answers", DAY, {"profile": text}, {}, text, answers),
        RunRecord(Path("x"), "t", "trace", DAY, {"profile": text}, {}, "passed", {"phases": phases}),
    ]
    rows = matrix.rows_of(runs, "prod", "serve", ["plain", "cutlass"])
    targets = [page.TargetLine("llama.cpp", 57.85, text)]
    return page.render("p", "today", rows, runs, targets, {text: {text: 3.0, "weights": 5.0}})


@given(st.text(max_size=40) | st.just(EVIL) | st.from_regex(r"[<>&\"'{}%]{1,20}"))
def test_nothing_of_a_record_becomes_markup(text: str) -> None:
    html = rendered(text)
    tags = Tags()
    tags.feed(html)
    plain = Tags()
    plain.feed(rendered("x"))
    assert tags.tags <= plain.tags | {"code"} and not tags.tags & {"script", "img", "iframe", "a", "link", "object"}
    assert tags.attributes <= plain.attributes and not {name for name in tags.attributes if name.startswith("on")}
    assert "\x1b" not in html and "style" not in tags.attributes


def test_the_policy_allows_the_pages_own_style_alone() -> None:
    html = rendered("x")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert "http" not in re.sub(r"<title>.*?</title>", "", html.replace("http-equiv", ""))
    assert "TODO" in html and "llama.cpp 57.85" in html and "Where a token" in html and "Starts by phase" in html
    assert 'class="target"' in html and "By concurrency" in html


def test_a_chart_has_what_can_be_compared() -> None:
    """Targets are of one request without context; over one axis, the other one stays."""
    sizes = [(0, 1), (16384, 1), (4096, 1), (0, 8), (4096, 8)]
    cells = [
        {"test": str(MatrixCell(32, 2048, depth, many)), "context_tokens": depth, "concurrency": many,
         "decode_tps": {"median": 50.0 - many}} for depth, many in sizes
    ]  # fmt: skip
    run = RunRecord(Path("x"), "a", "bench", DAY, {"profile": "prod"}, {}, "passed", {"cells": cells})
    drawn = {
        axis: {mark.label.partition(":")[0] for mark in chart.marks}
        for axis in ("concurrency", "context_tokens") if (chart := page.by_size(run, axis, ""))
    }  # fmt: skip
    assert drawn == {
        "concurrency": {"pp2048 tg32", "pp2048 tg32 c8"},
        "context_tokens": {"pp2048 tg32", "pp2048 tg32 @ d4096", "pp2048 tg32 @ d16384"},
    }
    odd = [{"context_tokens": 0, "concurrency": many, "decode_tps": {"median": 0}} for many in (0, -1)]
    assert page.by_size(replace(run, summary={"cells": odd}), "concurrency", "")  # of a record that nobody measured
    targets = [page.TargetLine(name, 50.0, "") for name in "abc"]
    time = page.over_time([run], targets)
    assert len(time.marks) == 1 and len({line.x for line in time.lines}) == 3
    rows = [matrix.MatrixRow("plain", str(cell["test"]), decode_tps=1.0, run="a") for cell in cells]
    assert [row.label for row in page.decode_bars(rows, targets)[0]] == ["plain pp2048 tg32"]


def test_a_project_without_results_has_a_page() -> None:
    rows = matrix.rows_of([], "prod", "serve", ["plain"])
    assert "Nothing was measured yet" in page.render("p", "today", rows, [], [], {})
