"""Without an extra its commands print what to install; the others work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.bench import record
from envgen.cli.measure import common


@pytest.fixture(autouse=True)
def nothing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: name == "pip" or None)


@pytest.mark.parametrize("words", ["smoke --url http://h:1", "accept --url http://h:1", "bench --url http://h:1"])
def test_trials(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err == (
        "envgen: this command needs aiohttp and scipy (the extra `bench`)\n"
        f"    hint: run `{sys.executable} -m pip install aiohttp scipy`\n"
    )


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "find_spec", lambda _name: None)
    assert main(["smoke", "--url", "http://h:1"]) == 2
    assert f"`uv pip install --python {sys.executable} aiohttp scipy`" in capsys.readouterr().err


def test_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with record.start(tmp_path, "bench", {}, {}) as run:
            run.sample({"decode_tps": 30.0})
            run.end("passed", {"decode_tps": 30.0})
    assert main(["results", "list", "--folder", str(tmp_path)]) == 0
    assert main(["results", "show", "latest", "--folder", str(tmp_path)]) == 0
    assert main(["results", "compare", "latest~1", "latest", "--folder", str(tmp_path)]) == 2
    assert "pip install aiohttp scipy" in capsys.readouterr().err
