"""The list of verbs."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from envgen import cli


def help_text(group: click.Group) -> str:
    return group.get_help(click.Context(group, info_name="envgen", max_content_width=100))


def test_every_command_stands_in_the_help() -> None:
    text = help_text(cli.main)
    for heading, (_, rows) in cli.GROUPS.items():
        assert f"{heading}:\n" in text
        for names, line in rows.items():
            assert re.search(rf"^  {names} +{re.escape(line)}$", text, re.MULTILINE)
    assert text.count("\n") < 56  # one screen


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(click.UsageError, match=r"no such command 'biuld'\. did you mean `build`\?"):
        cli.main.main(["biuld"], standalone_mode=False)


@pytest.mark.parametrize("words", [["patch"], ["results"], ["model"], ["cache"], ["nodes"], ["export"], []])
def test_no_line_of_help_is_cut(words: list[str]) -> None:
    assert "..." not in CliRunner().invoke(cli.main, [*words, "--help"]).output.partition("Commands:")[2]
