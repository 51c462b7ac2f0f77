"""The site of docs/, built by the real MkDocs: every link and anchor holds, and its search finds each command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from envgen.cli import GROUPS

TOP = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_site_and_every_link_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)], cwd=TOP,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # Material's advertisement of its successor
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    pages = {path.stem for path in (TOP / "docs").glob("*.md")}
    assert pages <= {path.stem for path in tmp_path.glob("*.html")}
    index = json.loads((tmp_path / "search" / "search_index.json").read_text("utf-8"))
    repeated = [found["location"] for found in index["docs"] if re.search(r"_\d+$", found["location"])]
    assert not repeated  # a heading twice on a page: what two edits of it leave
    titles = [re.sub("<[^>]*>", "", found["title"]) for found in index["docs"] if "cli.html" in found["location"]]
    for name in (name for _, rows in GROUPS.values() for names in rows for name in names.split(", ")):
        assert any(re.match(rf"envgen {name}\b", title) for title in titles), name
