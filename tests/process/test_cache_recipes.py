"""The command of the docs that empties a cache which envgen does not look into."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "jit-cache.md"


@pytest.mark.parametrize("named", [True, False])
def test_triton_s_cache_is_emptied_where_triton_has_it(named: bool, tmp_path: Path) -> None:
    """Triton 3.7.1 uses TRITON_CACHE_DIR as it is, and ~/.triton/cache without it (triton/knobs.py)."""
    text = PAGE.read_text("utf-8")
    (line,) = re.findall(r"`envgen exec serve -- (sh -c '[^`]*TRITON_CACHE_DIR[^`]*')`", text)
    used = tmp_path / ".triton" / ("" if named else "cache")
    (used / "OZ7J" / "deep").mkdir(parents=True)
    (used / "OZ7J" / "kernel.cubin").write_bytes(b"x")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **({"TRITON_CACHE_DIR": str(used)} if named else {})}
    subprocess.run(shlex.split(line), env=env, check=True)
    assert used.is_dir() and not list(used.iterdir())
