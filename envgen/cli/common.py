"""What the verbs share: options that choose file, profile and overrides, and how results are printed."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import click

from envgen.app.session import Session
from envgen.engine.compose import Compose
from envgen.errors import ExitCode, Output, UsageError
from envgen.live import paused
from envgen.text import with_own_colours

LARGEST = 1_000_000_000  # of any number on a command line: beyond it clocks and sizes overflow


class Count(click.IntRange):
    """A whole number from ``min`` on, up to what clocks and sizes can hold; the help shows ``min`` alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return found if found <= LARGEST else self.fail(f"{value} is more than {LARGEST}", param, ctx)


class Figure(click.FloatRange):
    """A number in a range, up to what clocks and sizes can hold: not NaN, not infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found if found <= LARGEST else self.fail(f"{value} is more than {LARGEST}", param, ctx)


F = TypeVar("F", bound=Callable[..., Any])


def project_options(function: F) -> F:
    """Add -f/--file, -p/--profile and --set; the command receives one ``session``."""
    return _with_session(function, "-f", "--file")


def project_options_without_f(function: F) -> F:
    """The same for a command whose -f means something else (`logs -f`)."""
    return _with_session(function, "--file")


def _with_session(function: F, *file_names: str) -> F:
    @click.option(*file_names, "file", type=click.Path(path_type=Path), envvar="ENVGEN_FILE", metavar="FILE",
                  help="The project file (default: envgen.yaml, searched upward).")  # fmt: skip
    @click.option("-p", "--profile", envvar="ENVGEN_PROFILE", metavar="NAME",
                  help="The profile (default: default_profile, or the first one).")  # fmt: skip
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
                  help="Override one value, such as build.max_jobs=4 (repeatable).")  # fmt: skip
    @functools.wraps(function)
    def wrapper(*args: Any, file: Path | None, profile: str | None, sets: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, session=Session(file, profile, sets), **kwargs)

    return wrapper  # type: ignore[return-value]


def variant_option(function: F) -> F:
    """Add --variant, which goes into the ``session``; goes below ``project_options``."""

    @click.option("--variant", default="", metavar="NAME",
                  help="Apply this variant of the profile (`envgen config` lists them).")  # fmt: skip
    @functools.wraps(function)
    def wrapper(*args: Any, session: Session, variant: str, **kwargs: Any) -> Any:
        return function(*args, session=session.with_(variant=variant), **kwargs)

    return wrapper  # type: ignore[return-value]


def _keep_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.ensure_object(Output).json |= value


# Eager: an error in any other option is a document, too.
json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, expose_value=False, callback=_keep_json,
    help="Print the result as one JSON document.",
)  # fmt: skip


def reporting(function: F) -> F:
    """The options of a command that works with a project and has --json."""
    return project_options(json_option(function))


def wants_json() -> bool:
    """Whether the command line asks for JSON."""
    return click.get_current_context().ensure_object(Output).json


def answer(document: Any, lines: Iterable[str] = (), code: int = ExitCode.OK) -> int:
    """Print what a command has found: ``document`` with --json, else the ``lines``. Returns ``code``."""
    if wants_json():
        print_json(document)
    else:
        for line in lines:
            click.echo(line)
    return code


def print_json(document: Any) -> None:
    """Print ``document`` with stable keys; results go to stdout, everything else to stderr."""
    click.get_current_context().ensure_object(Output).printed = True
    click.echo(json.dumps(document, indent=2, sort_keys=True))


def ask(question: str) -> bool:
    """A yes from the terminal; False without a terminal."""
    with paused():
        return sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(question, err=True)


def confirm(what: str, question: str, lines: Iterable[str]) -> None:
    """A yes to ``lines``, from the terminal. UsageError without a terminal, click.Abort without a yes."""
    if wants_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{what} needs --yes with --json or without a terminal", hint="add --yes or --dry-run")
    for line in lines:
        click.echo(line)
    click.confirm(question, abort=True, err=True)


def show_logs(composes: Mapping[str, Compose], *words: str) -> int:
    """`docker compose logs ...` on our terminal, where only colours pass; raw when redirected to a pipe or a file.

    Of several machines (by their names), each line begins with the name: all at once with --follow, else in turn.
    """
    if len(composes) > 1:
        with ThreadPoolExecutor(len(composes) if "--follow" in words else 1) as pool:
            return max(pool.map(lambda node: _stream(composes[node], words, f"{node} | "), composes))
    compose = next(iter(composes.values()), None)
    if compose is None or sys.stdout.isatty():
        return _stream(compose, words) if compose else 0
    return compose.interactive(*words)


def _stream(compose: Compose, words: Sequence[str], mark: str = "") -> int:
    return compose.stream(*words, on_line=lambda line: click.echo(with_own_colours(mark + line))).code
