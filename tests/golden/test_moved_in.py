"""The project file that `envgen init --from` makes of one set-up, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envgen.app.move_in import draft_of, write

HERE = Path(__file__).parent
SETUP = HERE.parent / "unit" / "move_in" / "setups" / "seed_prod"


def test_the_written_project_is_the_expected_one(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = Path(shutil.copytree(SETUP, tmp_path / "moved"))
    write(draft_of(folder / "compose.yaml", [], folder, "moved"), "compose.yaml", folder)
    found = (folder / "envgen.yaml").read_text()
    expected = HERE / "moved-in.yaml"
    if request.config.getoption("--update-golden"):
        expected.write_text(found)
    assert found == expected.read_text(), "run pytest tests/golden --update-golden and read the diff"
