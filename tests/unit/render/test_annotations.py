"""Annotations: problems as GitHub Actions shows them beside their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from envgen import cli
from envgen.errors import Place, Problem, as_annotations

FILE = """\
version: 1
name: t
profiles:
  prod:
    mode: production
    base: {image: "nvcr.io/x:1"}
    cuda: {arch_list: 12.1a}
    services: {serve: {command: [vllm, serve, m]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_annotations_are_github_s_alone() -> None:
    problems = [Problem("50% is\nno: number", Place("a,b:c.yaml", 3, 7, "x"), "write 1"), Problem("alone")]
    assert as_annotations(problems, {}) == ()
    assert list(as_annotations(problems, {"GITHUB_ACTIONS": "true"})) == [
        "::error file=a%2Cb%3Ac.yaml,line=3,col=7::50%25 is%0Ano: number%0Ahint: write 1",
        "::error::alone",
    ]


def test_a_drifted_file_is_annotated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(cli.main, ["render"]).exit_code == 0
    with (folder / "Dockerfile").open("a") as file:
        file.write("# mine\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = CliRunner().invoke(cli.main, ["render", "--check"]).stderr.splitlines()
    shown = "::error file=Dockerfile::is not what the project file renders to%0Ahint: envgen render"
    assert [line for line in lines if line.startswith("::")] == [shown]
