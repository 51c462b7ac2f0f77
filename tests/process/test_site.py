"""The site of docs/, built by the real MkDocs: every link and anchor holds, and its search finds, without a network."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import Browser

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=TOP, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in (TOP / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_search_finds_a_word_and_asks_no_other_server(address: str, browser: Browser) -> None:
    browser.open(f"{address}tutorial.html?q=cubins")
    found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    deadline = time.monotonic() + 60
    while not (links := browser.js(found)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert any("predict.html" in link for link in links)
    assert all(asked.startswith((address, "data:", "blob:")) for asked in browser.requests())
