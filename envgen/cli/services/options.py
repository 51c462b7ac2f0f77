"""Options that several verbs on services share, spelled as Docker spells them."""

from __future__ import annotations

import functools
from typing import Any

import click

from envgen.cli.common import LARGEST, F
from envgen.errors import UsageError

timeout_option = click.option(
    "--timeout", type=click.IntRange(1, LARGEST), metavar="SECONDS", help="Give up waiting after this long."
)


node_option = click.option("--node", metavar="NAME", help="Of a service with `cluster`: this machine.")


def inside_options(function: F) -> F:
    """Docker's options of a command in a container; the verb gets them as ``inside``, and ``tty``: one is allowed."""

    @click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Set a variable.")
    @click.option("-u", "--user", metavar="USER", help="Run as this user (name or number).")
    @click.option("-w", "--workdir", metavar="FOLDER", help="Run in this folder.")
    @click.option("-i", "--interactive", is_flag=True, help="Pass standard input on (always done).")
    @click.option("-t", "--tty", "wanted", is_flag=True, help="Use a terminal (done where there is one).")
    @click.option("-T", "--no-tty", is_flag=True, help="Use no terminal.")
    @functools.wraps(function)
    def wrapper(
        *args: Any, variables: tuple[str, ...], user: str | None, workdir: str | None, interactive: bool, wanted: bool,
        no_tty: bool, **kwargs: Any,
    ) -> Any:  # fmt: skip
        words = [f"--env={one}" for one in variables]
        words += [f"--user={user}"] if user is not None else []
        words += [f"--workdir={workdir}"] if workdir is not None else []
        return function(*args, inside=words, tty=not no_tty, **kwargs)

    return wrapper  # type: ignore[return-value]


def command_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind SERVICE, with or without `--`. UsageError for an option that stands where it should not."""
    words = argv[1:] if argv[:1] == ("--",) else argv
    if not words:
        raise UsageError("there is no command", hint="write it behind SERVICE")
    if words is argv and words[0].startswith("-"):
        raise UsageError(f"{words[0]} is not a command", hint="options of envgen stand before SERVICE")
    return words
