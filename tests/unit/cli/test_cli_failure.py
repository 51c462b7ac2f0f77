"""A failure with --json: one document on standard output, whatever went wrong."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from envgen import cli
from envgen.__main__ import main
from envgen.app.session import Session
from envgen.errors import BuildError


def _verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _verbs(command, (*path, name))
        elif any(parameter.name == "as_json" for parameter in command.params):
            yield (*path, name)


VERBS = sorted(_verbs(cli.main))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(
        "version: 1\nname: unit\nprofiles:\n  dev: {mode: development, base: {image: b:1}, cuda: {arch_list: 12.1a}}\n"
    )


def fails(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, Any]:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert err
    document: dict[str, Any] = json.loads(out)
    assert document["code"] == code and document["error"] and "hint" in document
    return document


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_with_json_reports_a_wrong_option_as_json(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--no-such" in fails(capsys, 2, *words, "--no-such-option", "--json")["error"]


def test_a_verb_without_json_prints_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--json"]) == 2
    assert main(["ps", "-p", "nope"]) == 2
    assert capsys.readouterr().out == ""


def test_problems_of_the_project_file_have_places(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text("version: 1\nname: unit\nprofles: {}\nprofiles: {dev: {gpus: 1}}\n")
    found = fails(capsys, 2, "ps", "--json")
    assert {"profles" in one["message"] or one["key"] for one in found["problems"]}
    assert all(one["file"].endswith("envgen.yaml") and one["line"] for one in found["problems"][:2])
    assert found["hint"]


def test_an_interrupt_a_disk_and_a_defect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the report of a defect stays
    latin = UnicodeEncodeError("ascii", "\u00fc", 0, 1, "not in range")  # PYTHONUTF8=0, and a folder with such a letter
    ends = ((KeyboardInterrupt(), 130), (OSError(28, "No space left"), 6), (latin, 2), (ValueError("odd"), 70))
    for error, code in ends:

        def stop(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(Session, "loaded", stop)
        fails(capsys, code, "ps", "--json")
    assert "ValueError: odd" in next(tmp_path.glob("envgen-defect-*")).read_text()


def test_what_was_found_before_the_failure_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        error = BuildError("it broke", hint="look")
        error.details = {"log": "a.log", "code": "taken"}
        raise error

    monkeypatch.setattr(Session, "profile", stop)
    found = fails(capsys, 4, "build", "--json")
    assert (found["log"], found["code"], found["error"], found["hint"]) == ("a.log", 4, "it broke", "look")


def test_no_second_document(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_: object) -> None:
        from envgen.cli.common import print_json

        print_json({"a": 1})
        raise BuildError("late")

    monkeypatch.setattr(Session, "profile", late)
    assert main(["build", "--json"]) == 4
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "a b", "up", "serve"], "-p goes after the command, as in `envgen up -p dev`"),
        (["recipe", "--model-variant", "x", "show", "y"], "--model-variant goes after the command"),
        (["--verison"], "is not an option"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_before_the_command_gets_its_place(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
