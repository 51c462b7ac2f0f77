"""What a shell completes, on a small project."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.__main__ import main

PROJECT = """\
version: 1
name: demo
defaults:
  base: {image: debian}
  cuda: {arch_list: 12.1a}
  mode: production
profiles:
  prod:
    services:
      serve: {command: [x], ready: {timeout: 60s}}
      second: {command: [x]}
    variants:
      slow: {description: x}
  other: {}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "envgen.yaml"
    file.write_text(PROJECT)
    return file


@pytest.mark.parametrize("text", [None, "", "version: [", "version: 1\nname: x\nprofiles: {a: {gpu: 7}}\n"])
@pytest.mark.parametrize("words", ["up", "up -p", "build --set", "cache clear", "nope", "logs -n x"])
def test_no_error_ever_reaches_a_prompt(
    text: str | None, words: str, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project.unlink() if text is None else project.write_text(text)
    for name, value in {
        "_ENVGEN_COMPLETE": "bash_complete", "COMP_WORDS": f"envgen {words} ",
        "COMP_CWORD": str(len(words.split()) + 1),
        "DOCKER_HOST": "unix:///no/such.sock",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    try:
        assert main([]) == 0
    except SystemExit as end:
        assert end.code == 0
    assert capfd.readouterr().err == ""
