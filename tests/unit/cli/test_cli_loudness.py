"""-v, and colours: what a terminal gets."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from envgen import __version__
from envgen.__main__ import main
from envgen.app.session import Session
from envgen.engine.process import show_command
from envgen.profile.model import Profile
from envgen.text import SafeStream, Styled, paint, progress, wants_colour


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(
        "version: 1\nname: unit\nprofiles:\n  dev: {mode: development, base: {image: b:1}, cuda: {arch_list: 12.1a}}\n"
    )
    before = Session.profile

    def noisy(session: Session, *, local: bool = True) -> Profile:
        progress("on the way")
        show_command(["git", "two words"])
        return before(session, local=local)

    monkeypatch.setattr(Session, "profile", noisy)


@pytest.mark.parametrize("words", [["-v", "config"], ["config", "-v"], ["config"]])
def test_verbose_prints_each_program(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{") and "on the way" in err and ("$ git 'two words'" in err) == ("-v" in words)


def test_the_letter_is_free_where_docker_has_another_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--volumes " in out and "  --verbose" in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": ""}, True),
    ],
)
def test_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool) -> None:
    """They are made or not, and pass or not, by the same variables; in a pipe only where they are forced."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    SafeStream(stream).write(Styled(paint("red", "31", True) + " plain"))
    assert stream.getvalue() == ("\x1b[31mred\x1b[0m plain" if coloured else "red plain")
    assert wants_colour(Terminal(), environ) is coloured
    assert wants_colour(io.StringIO(), environ) is (environ.get("FORCE_COLOR") == "1" and coloured)


def test_version_has_a_short_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-V"]) == 0
    assert capsys.readouterr().out == f"envgen {__version__}\n"
