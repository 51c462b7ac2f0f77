"""The programs that run in builds and containers: each is seen by the linters, and is Python that 3.8 can read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from envgen.files import data_dir
from envgen.render.outputs import scripts

TOP = data_dir("docker").parent
PYTHON = [
    TOP / name
    for name, text in scripts().items()
    if text.startswith(("#!/usr/bin/env python3", "#!/usr/bin/env -S python3"))
]


def test_ruff_reads_each_of_them() -> None:
    """They have no suffix by which it would find them."""
    listed = re.findall(r'^  "(docker/[^"]+)",$', Path(TOP / "pyproject.toml").read_text("utf-8"), re.M)
    assert listed == sorted(path.relative_to(TOP).as_posix() for path in PYTHON)


INSIDE = sorted((TOP / "envgen/inside").rglob("*.py"))


@pytest.mark.parametrize("path", [*PYTHON, *INSIDE], ids=lambda path: path.name)
def test_python_38_can_read_them(path: Path) -> None:
    ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
