"""`envgen results`, from records that real runs wrote."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from envgen.__main__ import main

DATA = Path(__file__).parent / "data"
A, B = "076a437d", "5ea8affe"


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "results").mkdir()
    for one in DATA.glob("*.jsonl"):
        shutil.copy(one, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def envgen(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["results", *words]) == code
    return capsys.readouterr()[bool(code)]


def test_list_and_compare(deployment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (deployment / "results" / "x.jsonl").write_text("{}")
    lines = envgen(capsys, "list").splitlines()
    assert lines[0].split() == ["RUN", "WHEN", "(UTC)", "KIND", "WHAT", "OUTCOME"]
    assert [line.split()[0] for line in lines[1:]] == [A, B]
    document = json.loads(envgen(capsys, "list", "--json"))
    assert len(document["runs"]) == 2 and len(document["damaged"]) == 1
    text = envgen(capsys, "compare", "076a", "5ea8")
    assert re.search(f"{B} .* bench +tiny", text) and "decode, t/s" in text
    assert (
        "B - A" in text
        and "median (min to max, coefficient of variation, values)" in text
        and "parameters.seed: 744108904 in A" in text
    )
    document = json.loads(envgen(capsys, "compare", "076a", "5ea8", "--json"))
    figures = document["figures"][0]
    assert figures["metric"] == "prefill_tps"
    assert figures["percent"] and figures["runs"]["B"]["min"] <= figures["runs"]["B"]["median"]


def test_compare_shows_the_targets_that_each_run_had(deployment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (deployment / "results").glob(f"*{B}*")
    *lines, end = path.read_text().splitlines()
    gap = {"target": "llama.cpp", "figure": "tg32", "wanted": 57.85, "test": "pp64 tg32", "percent": -4.2}
    document = json.loads(end)
    document["summary"]["targets"] = [gap]
    path.write_text("\n".join([*lines, json.dumps(document), ""]))
    assert "Targets" not in envgen(capsys, "compare", A, A)
    text = envgen(capsys, "compare", A, B)
    assert re.search(r"^Targets\n +A +B\n57.85 llama.cpp \(tg32\), pp64 tg32 +- +-4 %$", text, re.M), text
    assert json.loads(envgen(capsys, "compare", A, B, "--json"))["targets"] == {"A": [], "B": [gap]}
