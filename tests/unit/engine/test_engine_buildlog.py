"""Build logs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.engine.buildx import BuildLog


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "logs", "dev") as log:
        log.say("$ buildx")
        log.say("#1 [final 2/2] RUN make all")
        assert log.path.read_text() == "$ buildx\n#1 [final 2/2] RUN make all\n"


def test_an_interrupted_build_says_so_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BuildLog(tmp_path, "dev") as log:
        raise KeyboardInterrupt
    assert log.path.read_text() == "cancelled\n"


def test_two_builds_in_one_second_have_two_logs(tmp_path: Path) -> None:
    with BuildLog(tmp_path, "a") as first, BuildLog(tmp_path, "a") as second:
        assert first.path != second.path
