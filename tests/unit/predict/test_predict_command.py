"""`envgen predict`: what it prints of a recorded answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.app.predict import corrected
from envgen.cli import run_line as envgen
from envgen.inside import run
from envgen.predict.judge import Contradiction, escape

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
          model: openai/gpt-oss-120b
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


def test_a_contradicted_pattern_is_printed_as_it_should_be(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert envgen(["predict", "--python", "python"]) == 1
    line = "services: {serve: {ready: {expect: {moe: 'Using ''MARLIN'' Mxfp4 MoE backend'}}}}"
    assert f"  this pattern fits: {line}\n" in capsys.readouterr().out
    (project / "envgen.local.yaml").write_text(f"profiles: {{prod: {{{line}}}}}\n")
    assert envgen(["predict", "--python", "python"]) == 0


SIZE = {
    "config": {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 64}, "weights": 61 << 30,
    "context": 131072, "cache_dtype": "auto", "dtype": "bfloat16", "fixed": None, "ranks": 1, "stages": 1, "sequences": 2,
    "batched": 8192, "draft": "",
}  # fmt: skip


def test_weights_that_leave_no_room(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = json.loads((ANSWERS / "0.32.0-two-gpus.json").read_text(encoding="utf-8"))
    for share, code, end in ((0.9, 0, "OK: vLLM accepts"), (0.2, 1, "too large: vLLM accepts")):
        answer = {**recorded, "size": {**SIZE, "share": share}}
        monkeypatch.setattr(run, "ask", lambda *_, answer=answer, **__: answer)
        words = ["predict", "--python", "python", "--set", "services.serve.ready.expect.moe=null"]
        assert envgen(words) == code
        assert capsys.readouterr().out.splitlines()[-1].startswith(end)


def test_the_report_is_one_json_document(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envgen(["predict", "serve", "--python", "python", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "contradicts" and report["attention"]["backend"] == "TRITON_ATTN"
    assert report["patterns"]["moe"] == "Using 'MARLIN' Mxfp4 MoE backend"


@given(st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1))
def test_any_line_of_a_log_comes_back_as_a_pattern_that_finds_it(line: str) -> None:
    found: Any = SimpleNamespace(service="serve", judgement=SimpleNamespace(patterns={"moe": escape(line)}))
    written = yaml.safe_load(corrected(found, Contradiction("expect", "moe", "other", line)))
    assert re.search(written["services"]["serve"]["ready"]["expect"]["moe"], f"INFO {line} x")
