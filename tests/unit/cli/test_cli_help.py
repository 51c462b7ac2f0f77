"""The list of verbs, and the width it is printed in."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen import cli


def help_text(group: click.Group) -> str:
    return group.get_help(click.Context(group, info_name="envgen", max_content_width=100))


@pytest.mark.parametrize("columns", ["20", "60", "80", "99", "200", "", "many", "0", "-5", "²"])
def test_help_is_as_wide_as_click_itself_makes_it(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ours = help_text(cli.main)
    monkeypatch.setattr(cli.LazyGroup, "get_help", click.Group.get_help)
    assert ours == help_text(cli.main)


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_width_in_the_environment_is_taken_or_ignored(columns: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        assert cli._columns() > 0


def test_every_verb_stands_in_the_help() -> None:
    text = help_text(cli.main)
    for verb, (_, _, line) in cli.VERBS.items():
        assert f"  {verb} " in text
        assert line.split()[0] in text


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(click.UsageError, match=r"no such command 'biuld'\. Did you mean 'build'\?"):
        cli.main.main(["biuld"], standalone_mode=False)
