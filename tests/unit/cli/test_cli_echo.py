"""No error proposes the command that was just typed."""

from __future__ import annotations

import pytest

from envgen.errors import Problem, without_echo


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("up serve", "envgen up serve"),
        ("up serve", "`envgen up serve --profile cpu`"),
        ("up -p cpu serve", "envgen up --profile=cpu serve"),
        ("build --file a.yaml", "envgen build --profile dev --file a.yaml"),
    ],
)
def test_the_same_command_is_no_hint(typed: str, hint: str) -> None:
    (one,) = without_echo([Problem("it failed", hint=hint)], typed.split())
    assert (one.message, one.hint) == ("it failed", "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("up serve", "envgen up serve --recreate"),
        ("up serve", "envgen up dev"),
        ("up serve", "envgen down && envgen up serve"),
        ("up serve", "stop what uses memory, then: envgen up serve"),
        ("up serve", "don't"),
        ("up serve", ""),
        ("lock", "envgen lock --upgrade base"),
    ],
)
def test_another_command_stays(typed: str, hint: str) -> None:
    (one,) = without_echo([Problem("it failed", hint=hint)], typed.split())
    assert one.hint == hint
