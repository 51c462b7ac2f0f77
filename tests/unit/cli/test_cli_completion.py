"""What a shell completes: click's own classes for the three shells, on a small project."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from envgen import cli
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


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What is offered for the last word."""
    kind = get_completion_class(shell)
    assert kind
    *args, incomplete = words
    found = kind(cli.main, {}, "envgen", "_ENVGEN_COMPLETE").get_completions(args, incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_the_project(shell: str) -> None:
    assert completed("up", "-p", "", shell=shell) == ["prod", "other"]
    assert completed("up", "se", shell=shell) == ["serve", "second"]
    assert completed("up", "serve", "se", shell=shell) == ["second"]
    assert completed("exec", "ser", shell=shell) == ["serve"]
    assert completed("up", "-p", "other", "", shell=shell) == []
    assert completed("up", "--variant", "", shell=shell) == ["slow"]
    assert "--profile" in completed("build", "--", shell=shell)
    assert completed("cache", "cl", shell=shell) == ["clear"]


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_what_it_calls(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ENVGEN_COMPLETE={shell}_complete" in script and "_envgen_completion" in script
