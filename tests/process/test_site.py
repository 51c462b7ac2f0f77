"""The site of docs/, built by the real MkDocs: every link and anchor holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_site_and_every_link_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=TOP, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.stem for path in (TOP / "docs").glob("*.md")}
    assert pages <= {path.stem for path in tmp_path.glob("*.html")}
