"""The page of `results compare --html` in a real browser: what a reader sees, in light and dark, wide and narrow."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser

from envgen.__main__ import main
from envgen.results import store

TOP = Path(__file__).parents[2]
HISTORY = TOP / "examples" / "history" / "gpt-oss-120b-gb10.yaml"
HOSTILE = '<script>alert(1)</script><img src="http://127.0.0.1:9/x" onerror=alert(2)>"\'></style></title><h1>owned</h1>'

TEXTS = """[...document.querySelectorAll('h1,h2,h3,p,li,td,th,caption,figcaption,svg text')]
  .filter(e => e.textContent.trim())"""
# Relative luminance and contrast as WCAG 2 defines them; the ground is the nearest one that is not transparent.
CONTRAST = """(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const part = v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(part); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                        if (rgb(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)'; };
  return TEXTS.map(e => { const s = getComputedStyle(e); const ink = e.ownerSVGElement ? s.fill : s.color;
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    return [Math.round((a + 0.05) / (b + 0.05) * 100) / 100, e.textContent.trim().slice(0, 40)]; });
})()""".replace("TEXTS", TEXTS)
PLOTS = """[...document.querySelectorAll('figure > svg')].map(s => { const f = s.getBoundingClientRect(); return {
  title: s.closest('figure').querySelector('figcaption').textContent, width: f.width,
  lines: s.querySelectorAll('.line').length, marks: s.querySelectorAll('.mark').length,
  letters: [...s.querySelectorAll('.letter')].map(l => l.textContent),
  out: [...s.querySelectorAll('path, circle, text')].map(e => e.getBoundingClientRect()).filter(r =>
    r.left < f.left - 1 || r.right > f.right + 1 || r.top < f.top - 1 || r.bottom > f.bottom + 1).length,
  size: Math.min(...[...s.querySelectorAll('text')].map(t => t.getBoundingClientRect().height || 99)) }; })"""


def _bench(folder: Path, speed: float, seed: int, **environment: Any) -> None:
    chance = random.Random(seed)
    with store.start(folder, "bench", {"profile": "cpu", **environment}, {"repeats": 5}) as run:
        for prompt in (128, 512, 2048):
            for _ in range(5):
                cell = {"prompt_tokens": prompt, "output_tokens": 32}
                rates = {"decode_tps": chance.gauss(speed, 0.3), "prefill_tps": chance.gauss(4000, 90)}
                run.sample({"unit": "repeat", **cell, **rates})
                for _ in range(4):
                    times = {"ttft_ms": chance.gauss(40 + prompt / 40, 3), "itl_ms": chance.gauss(1000 / speed, 0.5)}
                    run.sample({"unit": "request", **cell, **times})
        run.end("passed", {})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """compare.html, show.html and hostile.html, written by the command itself."""
    folder = tmp_path_factory.mktemp("pages")
    _bench(folder / "results", 58.0, 1, variant="baseline", versions={"vllm": "0.14.0"})
    _bench(folder / "results", 60.0, 2, variant="cutlass", versions={"vllm": "0.20.2"})
    option = ["--folder", str(folder / "results")]
    assert main(["results", "import", str(HISTORY), *option]) == 0
    assert main(["results", "compare", "latest~1", "latest", *option, "--html", str(folder / "compare.html")]) == 0
    assert main(["results", "show", *option, "--html", str(folder / "show.html")]) == 0
    option = ["--folder", str(folder / "hostile")]
    for seed in (1, 2):
        _bench(folder / "hostile", 58.0, seed, variant=f"{HOSTILE}{seed}", env={HOSTILE: HOSTILE * seed})
    assert main(["results", "compare", "latest~1", "latest", *option, "--html", str(folder / "hostile.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; `scripts/browser` brings it."""
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


def assert_contrast(browser: Browser) -> None:
    """Every text stands out from its ground by 4.5 to 1, as WCAG's level AA asks for."""
    found = browser.js(CONTRAST)
    assert len(found) > 100
    assert [one for one in found if one[0] < 4.5] == []


@pytest.mark.parametrize("name", ["compare.html", "show.html"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_the_page_is_whole_and_readable(pages: Path, browser: Browser, name: str, dark: bool, width: int) -> None:
    page = pages / name
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert (browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)") != dark
    assert_contrast(browser)
    # The page itself never scrolls sideways: wide tables do, each in its own frame.
    assert browser.js("document.documentElement.scrollWidth") == width
    hidden = browser.js(
        f"{TEXTS}.filter(e => {{ const r = e.getBoundingClientRect(); return !r.width || !r.height; }})"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert hidden == []
    text = browser.js("document.body.innerText")
    for said in ("Throughput by context", "Latency distribution", "History", "llama.cpp f5acfb2ff", "SGLang", "52.37"):
        assert said in text, said


@pytest.mark.parametrize("width", [1200, 360])
def test_plots_show_what_was_measured(pages: Path, browser: Browser, width: int) -> None:
    browser.open(pages / "compare.html", width=width)
    plots = browser.js(PLOTS)
    assert [plot["title"] for plot in plots] == [
        "prefill",
        "decode of 32 tokens",
        *[f"time to first token, pp{p}" for p in (128, 512, 2048)],
        *[f"between tokens, pp{p} tg32" for p in (128, 512, 2048)],
        "decode of 32 tokens",
    ]
    for plot in plots:
        assert plot["out"] == 0, plot
        assert plot["width"] >= 300 and plot["size"] >= 8, plot
    assert [(plot["lines"], plot["marks"]) for plot in plots[:8]] == [(2, 6)] * 2 + [(2, 0)] * 6
    # Three prompt lengths of A and B, and every imported run with 32 tokens or an untold length.
    assert sorted(plots[8]["letters"]) == ["A", "B", "llama.cpp", "sglang"]
    assert plots[8]["marks"] == 6 + 18


def test_plots_have_names_and_descriptions_for_who_cannot_see_them(pages: Path, browser: Browser) -> None:
    browser.open(pages / "compare.html")
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    images = [
        node for node in nodes if node.get("role", {}).get("value") in ("image", "img") and not node.get("ignored")
    ]
    assert len(images) == browser.js("document.querySelectorAll('figure').length")
    assert all(node["name"]["value"] and "A: " in node["description"]["value"] for node in images[:2])
    regions = [n["name"]["value"] for n in nodes if n.get("role", {}).get("value") == "region"]
    assert "B against A" in regions and all(regions)
    headings = browser.js("[...document.querySelectorAll('h1,h2,h3')].map(h => h.tagName).join(' ')")
    assert headings.startswith("H1 H2") and headings.count("H1") == 1


def test_it_prints_on_white_paper(pages: Path, browser: Browser) -> None:
    browser.open(pages / "compare.html", dark=True)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
    browser.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert browser.js("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#000000"
    assert_contrast(browser)
    browser.call("Emulation.setEmulatedMedia", media="")


def test_hostile_texts_stay_text(pages: Path, browser: Browser) -> None:
    page = pages / "hostile.html"
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.js("document.querySelectorAll('script, img, iframe, object, link').length") == 0
    assert browser.js("document.querySelectorAll('h1').length") == 1
    assert browser.js("document.querySelectorAll('style').length") == 1
    assert browser.js("document.body.innerText").count("<script>alert(1)</script>") >= 4
