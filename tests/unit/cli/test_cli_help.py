"""The list of verbs."""

from __future__ import annotations

import click
import pytest

from envgen import cli


def help_text(group: click.Group) -> str:
    return group.get_help(click.Context(group, info_name="envgen", max_content_width=100))


def test_every_verb_stands_in_the_help() -> None:
    text = help_text(cli.main)
    for verb, (_, _, line) in cli.VERBS.items():
        assert f"  {verb} " in text
        assert line.split()[0] in text


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(click.UsageError, match=r"no such command 'biuld'\. Did you mean 'build'\?"):
        cli.main.main(["biuld"], standalone_mode=False)
