"""Numbers on the command line: huge ones, NaN and infinity are the user's mistake, never an internal error."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.__main__ import main


@pytest.mark.parametrize("words", [["smoke", "--stress"], ["bench", "--runs"], ["logs", "--tail"]], ids=" ".join)
def test_a_hostile_number_is_a_usage_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("nan", "9" * 30, "9" * 5000, "1000000001"):
        assert main([*words, value]) == 2
        assert words[1] in capsys.readouterr().err
    assert main([words[0], "--help"]) == 0 and "1000000000" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "0", "nan", ""])
def test_a_list_of_numbers(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--pp", text]) == 2
