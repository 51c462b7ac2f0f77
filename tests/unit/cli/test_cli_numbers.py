"""Numbers on the command line: huge ones, NaN and infinity are the user's mistake, never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from envgen.__main__ import main
from envgen.cli import main as group


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


OPTIONS = [
    ([*words, option.opts[0]], option.opts[0])
    for words, command in commands(group)
    for option in command.params
    if isinstance(option, click.Option) and isinstance(option.type, click.types.IntParamType) and option.name != "seed"
]


@pytest.mark.parametrize(
    ("words", "option"), OPTIONS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_hostile_number_is_a_usage_error(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("nan", "9" * 30, "9" * 5000):
        assert len(OPTIONS) > 8 and main([*words, value]) == 2
        assert option in capsys.readouterr().err


def test_the_limit_of_clocks_and_sizes_is_refused_and_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "--max-ttft", "1000000001"]) == 2
    assert "1000000001 is more than 1000000000" in capsys.readouterr().err
    assert main(["accept", "--help"]) == 0
    assert "1000000000" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "0", "nan", ""])
def test_a_list_of_numbers(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--pp", text]) == 2
