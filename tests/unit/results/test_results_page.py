"""The page of `--html`: the same records give the same bytes, and no text of a record becomes markup."""

from __future__ import annotations

import html.parser
import math
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.errors import RefusedError, ResultsError
from envgen.percentile import percentile
from envgen.results import charts, plot
from envgen.results.matrix import compare
from envgen.results.model import Record, Sample, frozen
from envgen.results.page import page, write_page
from envgen.results.shelf import Shelf, scan

TOP = Path(__file__).parents[3]
HISTORY = TOP / "examples" / "history" / "gpt-oss-120b-gb10.yaml"


def record(number: int, environment: dict[str, Any] | None = None, *samples: dict[str, Any]) -> Record:
    moment = datetime(2026, 1, number, tzinfo=timezone.utc)
    found = tuple(Sample(0.0, frozen(data)) for data in samples)
    return Record(
        Path(f"run{number}"),
        f"id{number}",
        "bench",
        moment,
        frozen(environment or {}),
        frozen({}),
        found,
        "passed",
        frozen({}),
    )


def cells(*rates: float, **more: Any) -> list[dict[str, Any]]:
    lengths = {"prompt_tokens": 512, "output_tokens": 32, **more}
    return [{**lengths, "decode_tps": rate, "ttft_ms": 1000 / rate} for rate in rates]


class Seen(html.parser.HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(sorted(name for name, _value in attrs))))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_same_records_give_the_same_bytes() -> None:
    runs = [record(1, {"profile": "a"}, *cells(30, 31, 32)), record(2, {"profile": "b"}, *cells(40, 41, 42))]
    assert page(runs, runs) == page(runs, runs)


def test_nothing_private_is_on_a_page_that_is_handed_on() -> None:
    token, home = "hf_" + "aB3" * 8, "/home/jdoe/models"
    told = {"model": f"{home}/gpt", "note": token, "profile": token, "variant": home}
    runs = [record(1, told, *cells(30, 31, 32)), record(2, {**told, "variant": f"{home}/x"}, *cells(40, 41, 42))]
    for found in (page(runs, runs), page(runs[:1], runs)):
        assert token not in found and "jdoe" not in found
        assert "[redacted: token]" in found and "/home/[user]/models" in found


HOSTILE = st.text(
    st.sampled_from("<>&\"'/=!-{}%#; abscriptonxl\0\x1b\n\u202e\ud800`\\"), max_size=40
) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        '" onload="alert(1)',
        "</style><script>",
        "--><img src=x onerror=alert(1)>",
        "{{ 7 * 7 }}",
        "{% raw %}",
        "]]>",
        "&lt;b&gt;",
    ]
)


@settings(max_examples=60, deadline=None)
@given(text=HOSTILE)
def test_no_text_of_a_record_becomes_markup(text: str) -> None:
    def pages(word: str) -> str:
        environment = {
            "profile": word,
            "variant": word,
            "env": {word: word},
            "engine": word,
            "imported": {"label": word},
        }
        runs = [
            record(1, environment, *cells(*range(30, 37))),
            record(2, {**environment, "flags": [f"--{word}"]}, *cells(41)),
        ]
        return page(runs, [*runs, record(3, environment, *cells(50))])

    harmless, found = Seen(pages("plain")), pages(text)
    # The very same tags with the very same attributes; only rows that an empty name leaves out may be missing.
    seen = Seen(found)
    tags = set(harmless.tags) | {("p", ()), ("ul", ())}
    assert set(seen.tags) <= tags
    assert "<script" not in found and "\0" not in found and "\x1b" not in found
    assert not re.search(r"\son\w+\s*=", re.sub(r">[^<]*<", "><", found))
    found.encode("utf-8")


def test_nothing_comes_from_a_network_and_the_policy_says_so() -> None:
    text = page([record(1, {}, *cells(30, 31))], [])
    assert "default-src 'none'" in text
    for word in ("http:", "https:", "url(", "@import", "src=", "href=", "<script", "style=", "@font-face"):
        assert word not in text, word


def test_imported_runs_alone_and_runs_without_figures_have_a_page() -> None:
    nothing = page([record(1)], [])
    assert "No throughput with known lengths" in nothing and "No distribution" in nothing
    mean = {
        "unit": "aggregate",
        "prompt_tokens": 0,
        "output_tokens": 32,
        "decode_tps": 57.85,
        "spread": {"decode_tps": 0.44},
    }
    two = page([record(1, {}, mean), record(2, {}, *cells(60))], [])
    assert "No test was measured in both." in two and "57.85 ± 0.44" in two


def test_write_page_keeps_what_is_not_its_own(tmp_path: Path) -> None:
    run = record(1, {}, *cells(30))
    shelf = Shelf(tmp_path, ())
    with pytest.raises(RefusedError, match="something else than a file"):
        write_page(tmp_path, [run], shelf)
    with pytest.raises(RefusedError, match="name of a record"):
        write_page(tmp_path / "x.jsonl", [run], shelf)
    with pytest.raises(ResultsError, match="can't write"):
        write_page(tmp_path / "none" / "x.html", [run], shelf)
    write_page(tmp_path / "x.html", [run], shelf)
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_plots_show_first_what_most_runs_measured() -> None:
    """A length that one run measured once is in the table alone."""
    a = [*cells(30, 31), *cells(29, output_tokens=16), *cells(28, output_tokens=128), *cells(27, prompt_tokens=1024)]
    b = [*cells(40, 41), *cells(39, prompt_tokens=2048), *cells(38, output_tokens=128)]
    drawn = charts.throughput(compare([record(1, {}, *a), record(2, {}, *b)]))
    assert [one.title for one in drawn] == ["decode of 32 tokens", "decode of 128 tokens"]
    assert [len(line.marks) for line in drawn[0].lines] == [2, 2]


@pytest.mark.parametrize(
    ("model", "stays"), [("openai/gpt-oss-120b", True), ("GPT-OSS-120B", True), (None, True), ("tiny", False)]
)
def test_another_model_is_no_history_of_this_one(model: str | None, stays: bool) -> None:
    run = record(1, {"model": "gpt-oss-120b"}, *cells(60))
    other = record(2, {"model": model} if model else {}, *cells(30))
    rows = charts.past(compare([run]), [run, other])["rows"]
    assert [row["id"] for row in rows] == (["id1", "id2"] if stays else ["id1"])


def test_the_history_stands_beside_a_run(tmp_path: Path) -> None:
    folder = str(tmp_path / "results")
    assert main(["results", "import", str(HISTORY), "--folder", folder]) == 0
    (tmp_path / "results" / "broken.jsonl").write_text("{}\n", encoding="utf-8")
    first = next(
        e for e in scan(tmp_path / "results").entries if not e.damaged and "64x128" in str(e.environment["imported"])
    )
    assert main(["results", "show", first.id, "--folder", folder, "--html", str(tmp_path / "p.html")]) == 0
    text = Seen((tmp_path / "p.html").read_text(encoding="utf-8")).text
    for said in ("llama.cpp f5acfb2ff (llama-bench)", "57.85 ± 0.44", "SGLang", "52.37", "59.36"):
        assert said in text, said


@settings(max_examples=500)
@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
@example(0.0, 5e-324)
@example(60.0, 60.0)
@example(0.0, 0.0)
def test_steps_enclose_and_are_few(a: float, b: float) -> None:
    low, high = sorted((a, b))
    found = plot.steps(low, high)
    tolerance = 1e-6 * max(abs(low), abs(high), 1e-3)
    assert found[0] <= low + tolerance and found[-1] >= high - tolerance
    assert 2 <= len(found) <= 9
    assert found == sorted(found)


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=400))
def test_distributions_stay_in_their_frame_and_end_at_all(values: list[float]) -> None:
    drawn = plot.distribution("t", "ms", [(0, "A", values)])
    (line,) = drawn.lines
    x = [float(v) for v in re.findall(r"[HM](-?[\d.]+)", line.path)]
    y = [float(v) for v in re.findall(r"V(-?[\d.]+)", line.path)]
    assert all(plot.LEFT - 0.1 <= value <= plot.WIDTH - plot.RIGHT + 0.1 for value in x)
    assert x == sorted(x) and y == sorted(y, reverse=True) and y[-1] == plot.TOP
    assert len(y) <= 200


def test_percentiles_are_interpolated() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile(list(map(float, range(101))), 95) == 95.0


def test_lengths_are_spaced_by_doublings_and_an_empty_prompt_stands_first() -> None:
    points = [plot.Point(x, 1.0, math.nan, "") for x in (0, 512, 1024, 2048)]
    drawn = plot.by_length("t", "x", "y", [(0, "A", points)])
    places = [float(mark.x) for mark in drawn.lines[0].marks]
    assert places[2] - places[1] == pytest.approx(places[3] - places[2], abs=0.2)
    assert drawn.x_ticks[0].label == "0"
    assert drawn.lines[0].marks[0].low == ""
