"""`envgen predict --write`: what changes in the project file, and what is only printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.cli import run_line as envgen
from envgen.inside import run

ANSWERS = Path(__file__).parent / "answers"
TEXT = """\
# kept
version: 1
name: t
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: "x:1"}
    cuda: {arch_list: 12.1a}
    services:
      serve:
        command: [vllm, serve, openai/gpt-oss-120b]
        ports: ["8000:8000"]
        ready:
          model: x
          port: 8000
          expect:
            moe: Using Marlin backend  # 0.14's words
            draft: later
    variants:
      other:
        services: {serve: {args: {enforce-eager: true}}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose release answers with a recording of 0.32.0; the Python that is named is not run."""
    answer: dict[str, Any] = json.loads((ANSWERS / "0.32.0-two-gpus.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(run, "ask", lambda *_, **__: answer)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "python").touch()
    return tmp_path


def test_patterns_of_the_release_replace_those_that_it_contradicts(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert envgen(["predict", "--python", "python", "--write"]) == 1  # what was asked is contradicted
    after = (project / "envgen.yaml").read_text(encoding="utf-8")
    line = "            moe: Using Marlin backend  # 0.14's words\n"
    changed = after.splitlines(keepends=True)
    assert "            moe: 'Using ''MARLIN'' Mxfp4 MoE backend'  # 0.14's words\n" in changed
    kept = [one for one in TEXT.splitlines(keepends=True) if one != line]
    assert [one for one in changed if one in kept] == kept and len(changed) == len(kept) + 3
    assert "+            moe: 'Using ''MARLIN'' Mxfp4 MoE backend'" in capsys.readouterr().err
    assert envgen(["predict", "--python", "python", "--write"]) == 0
    assert "already has what this release logs" in capsys.readouterr().err
    assert (project / "envgen.yaml").read_text(encoding="utf-8") == after


@pytest.mark.parametrize(
    "words",
    [["--variant", "other"], ["--set", "services.serve.ready.expect.moe=no such line"]],
    ids=["inherited", "overridden"],
)
def test_what_is_not_the_profile_s_own_is_printed(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert envgen(["predict", "--python", "python", "--write", *words]) == 1
    assert (project / "envgen.yaml").read_text(encoding="utf-8") == TEXT
    said = capsys.readouterr().err
    assert "envgen.yaml is unchanged" in said and "moe: 'Using ''MARLIN'' Mxfp4 MoE backend'" in said


def test_the_report_is_one_json_document(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envgen(["predict", "serve", "--python", "python", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "contradicts" and report["attention"]["backend"] == "TRITON_ATTN"
    assert report["patterns"]["moe"] == "Using 'MARLIN' Mxfp4 MoE backend"


def test_where_only_the_cubins_make_it_fit_that_choice_is_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads((ANSWERS / "0.32.0-flashinfer.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(run, "ask", lambda *_, **__: answer)
    words = ["predict", "serve", "--python", "python", "--set", "services.serve.ready.expect.moe=Using 'MARLIN'"]
    assert envgen([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["attention"]["backend"] == "FLASHINFER" and report["refusals"] == []
    assert any(line["text"] == "Using AttentionBackendEnum.FLASHINFER backend." for line in report["lines"])
    assert envgen(words) == 0
    assert "  attention     FLASHINFER" in capsys.readouterr().out
