"""Cache folders are made before Docker makes them as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.errors import RefusedError
from envgen.serve.prepare import make_folder


def test_a_missing_folder_is_made_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    assert capsys.readouterr().err == f"  created the folder {tmp_path}/a/b\n"


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a/b can't be created: Not a directory"):
        make_folder(tmp_path / "a/b")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a can't be created: File exists"):
        make_folder(tmp_path / "a")
