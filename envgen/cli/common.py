"""Shared by the commands: options for file, profile and overrides, and printing of results."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envgen.errors import ExitCode, OutputMode, UsageError
from envgen.live import paused
from envgen.text import progress, with_own_colours

if TYPE_CHECKING:  # what a command needs, and its --help does not
    from envgen.app.session import Session
    from envgen.engine.compose import Compose

LARGEST = (
    1_000_000_000  # the largest number on a command line: larger ones overflow clocks and sizes
)


class Count(click.IntRange):
    """A whole number up to LARGEST; the help shows only ``min``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return (
            number
            if number <= LARGEST
            else self.fail(f"{value} is more than {LARGEST}", param, ctx)
        )


F = TypeVar("F", bound=Callable[..., Any])


def flag(spellings: str, text: str) -> Callable[[F], F]:
    """An option without a value, such as ``-y, --yes``. ``text``: its help."""
    return click.option(*spellings.split(", "), is_flag=True, help=text)


def option(spellings: str, metavar: str, text: str, **more: Any) -> Callable[[F], F]:
    """An option with a value. ``more``: of click's."""
    return click.option(*spellings.split(", "), metavar=metavar, help=text, **more)


service_argument = click.argument("service", required=False)
services_argument = click.argument("names", metavar="[SERVICE]...", nargs=-1)


def project_options(function: F) -> F:
    """Add -f/--file, -p/--profile and --set; the command receives one ``session``."""
    return _with_session(function, "-f", "--file")


def project_options_without_f(function: F) -> F:
    """The same for a command whose -f means something else (`logs -f`)."""
    return _with_session(function, "--file")


def _with_session(function: F, *file_names: str) -> F:
    @click.option(
        *file_names,
        "file",
        type=click.Path(path_type=Path),
        envvar="ENVGEN_FILE",
        metavar="FILE",
        help="The project file (default: envgen.yaml, searched upward).",
    )
    @option(
        "-p, --profile",
        "NAME",
        "The profile (default: default_profile, or the first one).",
        envvar="ENVGEN_PROFILE",
    )
    @option(
        "--set, sets",
        "KEY=VALUE",
        "Override one value, such as build.max_jobs=4 (repeatable).",
        multiple=True,
    )
    @functools.wraps(function)
    def wrapper(
        *args: Any, file: Path | None, profile: str | None, sets: tuple[str, ...], **kwargs: Any
    ) -> Any:
        from envgen.app.session import Session

        return function(*args, session=Session(file, profile, sets), **kwargs)

    return wrapper  # type: ignore[return-value]


def variant_option(function: F) -> F:
    """Add --variant, which becomes part of the ``session``; apply it below ``project_options``."""

    @option(
        "--variant",
        "NAME",
        "Apply this variant of the profile (`envgen config` lists them), or several: a+b.",
        multiple=True,
    )
    @functools.wraps(function)
    def wrapper(*args: Any, session: Session, variant: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, session=session.with_(variant="+".join(variant)), **kwargs)

    return wrapper  # type: ignore[return-value]


def _keep_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.ensure_object(OutputMode).json |= value


# Eager, so that an error in any other option is printed as JSON too.
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_keep_json,
    help="Print the result as one JSON document.",
)


def reporting(function: F) -> F:
    """Add the project options and --json."""
    return project_options(json_option(function))


def warn_of_unused(session: Session, *, local: bool = True) -> None:
    """Print a warning for each setting without effect (``Session.warnings``), to stderr."""
    for problem in session.warnings(local=local):
        progress(
            f"warning: {replace(problem, place=problem.place and replace(problem.place, text=''))}"
        )


def wants_json() -> bool:
    """Whether the command line asks for JSON."""
    return click.get_current_context().ensure_object(OutputMode).json


def answer(document: Any, lines: Iterable[str] = (), code: int = ExitCode.OK) -> int:
    """Print a command's result: ``document`` with --json, else ``lines``. Returns ``code``."""
    if wants_json():
        print_json(document)
    else:
        for line in lines:
            click.echo(line)
    return code


def print_json(document: Any) -> None:
    """Print ``document`` with stable keys; results go to stdout, everything else to stderr."""
    click.get_current_context().ensure_object(OutputMode).printed = True
    click.echo(json.dumps(document, indent=2, sort_keys=True))


def can_ask() -> bool:
    """Whether there is a terminal for a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """Ask on the terminal; False without one, or without an answer."""
    with paused():
        return can_ask() and _agrees(question)


def _agrees(question: str) -> bool:
    """The answer on the terminal. The end of the input is none, and counts as a no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            progress("")  # after the ^C
            raise
        progress("\nno answer: the input ended")
        return False


def confirm(what: str, question: str, lines: Iterable[str]) -> None:
    """Show ``lines`` and ask on the terminal. UsageError without a terminal, click.Abort for a no."""
    if wants_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{what} needs --yes with --json or without a terminal", hint="add --yes or --dry-run"
        )
    for line in lines:
        click.echo(line)
    if not _agrees(question):
        raise click.Abort("cancelled")


def show_logs(composes: Mapping[str, Compose], *words: str) -> int:
    """`docker compose logs ...`: safe for the terminal with colours kept, or raw into a pipe or
    file.

    ``composes``: by machine. With several, each line begins with the machine's name; --follow reads
    all at once.
    """
    if len(composes) > 1:
        with ThreadPoolExecutor(len(composes) if "--follow" in words else 1) as pool:
            return max(
                pool.map(lambda node: _stream(composes[node], words, f"{node} | "), composes)
            )
    compose = next(iter(composes.values()), None)
    if compose is None or sys.stdout.isatty():
        return _stream(compose, words) if compose else 0
    return compose.interactive(*words)


def _stream(compose: Compose, words: Sequence[str], prefix: str = "") -> int:
    return compose.stream(
        *words, on_line=lambda line: click.echo(with_own_colours(prefix + line))
    ).code
