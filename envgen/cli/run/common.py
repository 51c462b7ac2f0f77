"""Options and lines that several commands for services share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from envgen.cli.common import Count, F, answer, flag, option
from envgen.errors import ExitCode, UsageError
from envgen.text import progress

if TYPE_CHECKING:
    from envgen.profile.model import Profile

timeout_option = option(
    "--wait-timeout, timeout",
    "SECONDS",
    "Stop waiting after this long (default: ready.timeout).",
    type=Count(1),
)
node_option = option("--node", "NAME", "The machine, for a service with `cluster`.")


def inside_options(function: F) -> F:
    """Add the options of `docker exec`; the command receives them as ``inside``, and ``tty`` (False
    with -T).
    """

    @option("-e, --env, variables", "NAME[=VALUE]", "Set a variable.", multiple=True)
    @option("-u, --user", "USER", "Run as this user (name or number).")
    @option("-w, --workdir", "FOLDER", "Run in this folder.")
    @flag("-t, --tty, wanted", "Allocate a terminal (default if this is one).")
    @flag("-T, --no-tty", "Do not allocate a terminal.")
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
        words = [f"--env={variable}" for variable in variables]
        if user is not None:
            words.append(f"--user={user}")
        if workdir is not None:
            words.append(f"--workdir={workdir}")
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
