"""-q, -v, and colours: what a terminal gets."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from envgen import __version__, cli
from envgen.__main__ import main
from envgen.app.session import Session
from envgen.engine.process import show_command
from envgen.profile.model import Profile
from envgen.text import Loudness, SafeStream, Styled, paint, progress, wants_colour


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


@pytest.mark.parametrize(
    ("option", "progresses", "commands"), [((), True, False), (("-q",), False, False), (("--verbose",), True, True)]
)
def test_progress_and_commands(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...], progresses: bool, commands: bool
) -> None:
    assert main([*option, "config", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{") and ("on the way" in err) == progresses and ("$ git 'two words'" in err) == commands


def test_behind_the_verb_they_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "-qv"]) == 0
    _, err = capsys.readouterr()
    assert "on the way" not in err and "$ git" in err


def test_every_command_takes_them_but_for_letters_of_docker() -> None:
    def below(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        context = click.Context(command)
        for letter in "qv":
            if next(one.name for one in command.params if f"-{letter}" in one.opts) not in ("quiet", "verbose"):
                yield path, letter
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                one = command.get_command(context, name)
                assert one is not None
                yield from below(one, f"{path} {name}".strip())

    assert sorted(below(cli.main, "")) == [("down", "v")]


def test_quiet_shows_errors_and_what_belongs_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-q", "config", "-p", "nope"]) == 2
    assert "'nope'" in capsys.readouterr().err
    Loudness.quiet = True
    progress("a line of the failed step", always=True)
    assert capsys.readouterr().err == "a line of the failed step\n"


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
