"""What is sent into a container lies in front of the standard library there."""

from __future__ import annotations

import sys
from pathlib import Path

import envgen.inside


def test_no_program_has_the_name_of_a_module_of_the_standard_library() -> None:
    top = Path(envgen.inside.__file__).parent
    names = {path.stem for path in top.rglob("*.py")} | {path.name for path in top.iterdir() if path.is_dir()}
    assert {"node", "run", "probe"} <= names
    assert not names & sys.stdlib_module_names
