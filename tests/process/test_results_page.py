"""The page of `results compare --html` in a real browser: whole in light and dark, wide and narrow; no network."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from envgen.__main__ import main
from envgen.bench import record

HOSTILE = '"><script>alert(1)</script>'


def bench(folder: Path, speed: float, seed: int, variant: str) -> None:
    chance = random.Random(seed)
    with record.start(folder, "bench", {"profile": "cpu", "variant": variant, "env": {HOSTILE: variant}}, {}) as run:
        for depth in (0, 4096, 8192):
            for _ in range(5):
                cell = {"prompt_tokens": 2048, "output_tokens": 32, "context_tokens": depth}
                run.sample({**cell, "decode_tps": chance.gauss(speed, 0.3), "prefill_tps": chance.gauss(4000, 90)})
        run.end("passed", {})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    bench(folder / "results", 58.0, 1, "baseline")
    bench(folder / "results", 60.0, 2, HOSTILE)
    option = ["--folder", str(folder / "results")]
    assert main(["results", "compare", "latest~1", "latest", *option, "--html", str(folder / "c.html")]) == 0
    return folder / "c.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; `scripts/browser` brings it."""
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (360, True)])
def test_the_page_is_whole(page: Path, browser: Browser, dark: bool, width: int) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == [] and browser.requests() == [page.as_uri()]
    # The page itself never scrolls sideways: wide tables do, each in its own frame.
    assert browser.js("document.documentElement.scrollWidth") == width
    assert browser.js("document.querySelectorAll('svg').length") == 2
    assert browser.js("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width >= 300)")
    assert browser.js("document.querySelectorAll('script, iframe, object, link').length") == 0
    text = browser.js("document.body.innerText")
    for said in ("B is better than A", "pp2048 tg32 @ d8192", "What differed", HOSTILE):
        assert said in text, said
