"""`envgen results` from argv to exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.__main__ import main
from envgen.results import store

HISTORY = Path(__file__).parents[3] / "examples" / "history" / "gpt-oss-120b-gb10.yaml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(folder: Path, base: float, variant: str = "base", repeats: int = 5, **environment: Any) -> str:
    with store.start(
        folder, "bench", {"profile": "cpu", "variant": variant, **environment}, {"repeats": repeats}
    ) as run:
        for number in range(repeats):
            cell = {"prompt_tokens": 128, "output_tokens": 32}
            run.sample({"unit": "repeat", **cell, "decode_tps": base + number / 10})
        run.end("passed", {"pp128 tg32 decode_tps": base})
    return run.id


def test_list_is_empty_then_shows_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "list"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "there are no runs in results\n")
    ident = bench(here / "results", 60)
    assert main(["results", "import", str(HISTORY)]) == 0
    capsys.readouterr()
    assert main(["results", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RUN", "WHEN", "(UTC)", "KIND", "PROFILE", "VARIANT", "OUTCOME", "HEADLINE"]
    assert len(lines) == 17
    assert lines[-1].startswith(ident) and "pp128 tg32 decode 60 t/s" in lines[-1]
    assert main(["results", "list", "--kind", "bench", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["id"], run["profile"], run["outcome"], run["imported"]) == (ident, "cpu", "passed", None)
    assert main(["results", "list", "--last", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_folder_lies_beside_the_project_file(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip  # noqa: E501
    (here / "envgen.yaml").write_text("this is not even a project", encoding="utf-8")
    bench(here / "results", 60)
    (here / "deep").mkdir()
    monkeypatch.chdir(here / "deep")
    assert main(["results", "list"]) == 0
    assert "bench" in capsys.readouterr().out


def test_show_tells_all(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ident = bench(here / "results", 60, env={"VLLM_X": "1"}, flags=["--enforce-eager"])
    assert main(["results", "show"]) == 0
    out = capsys.readouterr().out
    for said in (f"bench {ident}: cpu base", "outcome  passed after", "pp128 tg32", "60.20 ± 0.16 (5)", "repeats", "variable VLLM_X", "server flag --enforce-eager"):  # fmt: skip  # noqa: E501
        assert said in out, said
    assert main(["results", "show", ident[:4], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["environment"]["env"] == {"VLLM_X": "1"}
    assert document["figures"][0]["series"]["values"] == [60.0, 60.1, 60.2, 60.3, 60.4]
    assert len(document["samples"]) == 5


def test_compare_says_what_is_more_than_chance_and_what_differed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(here / "results", 60, env={"OTHER": "1"})
    bench(here / "results", 62, "marlin", env={"OTHER": "1", "KERNEL": "marlin"})
    assert main(["results", "compare", "latest~1", "latest"]) == 0
    out = capsys.readouterr().out
    assert "+3.3 %" in out and "B is better than A" in out and "5, 5" in out
    assert "variable KERNEL: not set in A; marlin in B" in out
    assert main(["results", "compare", "latest~1", "latest", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    against = document["figures"][0]["against_first"]["B"]
    assert against["significant"] is True and against["p_welch"] < 0.001
    assert [item["name"] for item in document["differing"] if item["section"] == "env"] == ["KERNEL"]


def test_two_repeats_and_imported_means_are_never_significant(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench(here / "results", 60, repeats=2)
    bench(here / "results", 90, repeats=2)
    assert main(["results", "compare", "latest~1", "latest"]) == 0
    out = capsys.readouterr().out
    assert "not tested (too few samples: 2 and 2, 3 each are needed)" in out and "better" not in out
    main(["results", "import", str(HISTORY), "--json"])
    files = [run["file"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert main(["results", "compare", files[0], files[7], files[13], files[14]]) == 0
    out = capsys.readouterr().out
    assert "31.58 ± 0.06 (10)" in out and "57.85 ± 0.44" in out and "52.37" in out
    assert "not tested (no samples: imported figures)" in out and "better" not in out


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["compare", "latest"], 2, "compare wants two runs"),
        (["compare", "latest", "latest"], 2, "the same run is named twice"),
        (["show", "zzzz"], 2, "there is no run 'zzzz'"),
        (["show", "none.jsonl"], 2, "there is no run"),
        (["show", "notes.txt.jsonl"], 8, "notes.txt.jsonl:1:1"),
        (["import", "none.md"], 2, "there is no such file"),
        (["import", "notes.txt.jsonl"], 8, "no figures were found"),
        (["import", "notes.txt.jsonl", "--date", "soon"], 2, "'soon' is no date"),
        (["rm", "notes.txt.jsonl"], 6, "it is not in"),
    ],
)
def test_mistakes_are_one_sentence(here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: str) -> None:  # fmt: skip  # noqa: E501
    bench(here / "results", 60)
    (here / "notes.txt.jsonl").write_text("just a note\n", encoding="utf-8")
    assert main(["results", *argv]) == code
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""


def test_rm_shows_before_it_removes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ident = bench(here / "results", 60)
    other = bench(here / "results", 61)
    assert main(["results", "rm", ident, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would remove ")
    assert main(["results", "rm", ident, "none"]) == 2  # one is wrong: none goes
    assert len(list((here / "results").iterdir())) == 2
    capsys.readouterr()
    assert main(["results", "rm", ident, ident[:5], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 1
    (left,) = (here / "results").iterdir()
    assert other in left.name


def test_import_dry_run_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "import", str(HISTORY), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would be imported: ") == 15
    assert not (here / "results").exists()


def test_texts_of_a_record_do_not_steer_the_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench(here / "results", 60, "\x1b[2J\nevil", env={"A\x07": "\x9b1m"})
    bench(here / "results", 61, "\x1b]0;x\x07")
    for argv in (["list"], ["show", "latest~1"], ["compare", "latest~1", "latest"]):
        assert main(["results", *argv]) == 0
        out = capsys.readouterr().out
        assert not [c for c in out if not c.isprintable() and c != "\n"], argv
        assert "\nevil" not in out
