"""Options and lines that several commands for services share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import Count, F, answer
from envgen.errors import ExitCode, UsageError
from envgen.text import progress

if TYPE_CHECKING:
    from envgen.profile.model import Profile

timeout_option = click.option(
    "--wait-timeout",
    "timeout",
    type=Count(1),
    metavar="SECONDS",
    help="Stop waiting after this long (default: ready.timeout).",
)
node_option = click.option(
    "--node", metavar="NAME", help="The machine, for a service with `cluster`."
)


def inside_options(function: F) -> F:
    """Add the options of `docker exec`; the command receives them as ``inside``, and ``tty`` (False
    with -T).
    """

    @click.option(
        "-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Set a variable."
    )
    @click.option("-u", "--user", metavar="USER", help="Run as this user (name or number).")
    @click.option("-w", "--workdir", metavar="FOLDER", help="Run in this folder.")
    @click.option(
        "-t", "--tty", "wanted", is_flag=True, help="Allocate a terminal (default if this is one)."
    )
    @click.option("-T", "--no-tty", is_flag=True, help="Do not allocate a terminal.")
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        variables: tuple[str, ...],
        user: str | None,
        workdir: str | None,
        wanted: bool,
        no_tty: bool,
        **kwargs: Any,
    ) -> Any:
        given = [*(("env", one) for one in variables), ("user", user), ("workdir", workdir)]
        words = [f"--{name}={value}" for name, value in given if value is not None]
        return function(*args, inside=words, tty=not no_tty, **kwargs)

    return wrapper  # type: ignore[return-value]


def command_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command after SERVICE and an optional `--`. UsageError for a misplaced option."""
    words = argv[1:] if argv[:1] == ("--",) else argv
    if not words:
        raise UsageError("no command given", hint="write it after SERVICE")
    if words is argv and words[0].startswith("-"):
        raise UsageError(
            f"{words[0]} is not a command", hint="envgen's options come before SERVICE"
        )
    return words


def ended(document: Any, lines: Sequence[str], left: Sequence[str]) -> int:
    """Print the document or the lines, and ``left``: what machines that do not answer still need."""
    answer(document, lines)
    for line in left:
        progress(line)
    return ExitCode.ENGINE if left else ExitCode.OK


def described(profile: Profile, names: Sequence[str]) -> str:
    return f"{', '.join(names)} of profile {profile.name}" if names else f"profile {profile.name}"
