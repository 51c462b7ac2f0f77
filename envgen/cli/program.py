"""main(): the only place that turns errors into output and exit codes."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO, cast

import click

from envgen import files
from envgen.cli import run_line
from envgen.errors import EnvgenError, ExitCode, OutputMode, document
from envgen.redact import hidden_values
from envgen.text import SafeStream, hide


def _report_defect(error: BaseException) -> int:
    """Report a bug of envgen, with the traceback in a file. Returns the exit code."""
    details = "the disk has no space left for them"
    with suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", prefix="envgen-defect-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
        details = file.name
    print(
        f"envgen: internal error: {type(error).__name__}: {error}\n  details: {details}",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL


class _Messages(SafeStream):
    """Standard error: a reader that left (`envgen up 2>&1 | head`) changes no result and no exit
    code.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.raw.flush()


@contextmanager
def _streams() -> Iterator[None]:
    """Replaces the standard streams; opens closed ones (`>&-`), whose numbers a file would get."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(
                os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY
            )  # the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast(TextIO, SafeStream(sys.stdout)),
        cast(TextIO, _Messages(sys.stderr)),
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            try:
                stream.flush()
            except OSError:  # what is in its buffer goes nowhere: Python's flush at exit must not fail, too (code 120)
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code (docs/troubleshooting.md)."""
    with _streams():
        hide(hidden_values(os.environ))
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    output = OutputMode()
    try:
        return _run(argv, output)
    except EnvgenError as error:
        place = error.problems[0].place
        # Editors find a place only where it begins the line.
        print(error if place and place.line else f"envgen: {error}", file=sys.stderr)
        return _failed(output, error, error.exit_code)
    except KeyboardInterrupt as error:
        reason = str(error) or "interrupted"
        print(f"envgen: {reason}", file=sys.stderr)
        return _failed(output, reason, ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return ExitCode.OK  # `envgen ... | head`: the reader left
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
            return _failed(output, error, _report_defect(error))  # a bug: the raiser owes a message
        print(f"envgen: {files.trouble(error)}", file=sys.stderr)
        return _failed(output, files.trouble(error), ExitCode.REFUSED)
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
            reason = f"with its encoding {error.encoding}, this Python can't name {error.object!a}; export PYTHONUTF8=1"
            print(f"envgen: {reason}", file=sys.stderr)
            return _failed(output, reason, ExitCode.USAGE)
        return _failed(
            output, f"internal error: {type(error).__name__}: {error}", _report_defect(error)
        )


def _failed(output: OutputMode, error: BaseException | str, code: int) -> int:
    """Print a failure as the JSON document with --json. Returns ``code``."""
    if output.json and not output.printed:
        with suppress(OSError):  # standard output may have failed
            print(json.dumps(document(error, code), indent=2, sort_keys=True), flush=True)
    return code


def _run(argv: Sequence[str] | None, output: OutputMode) -> int:
    """The command line, with click's own errors printed."""
    try:
        code = run_line(argv, output)
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return _failed(output, error.format_message(), ExitCode.USAGE)
    except click.Abort as stopped:
        raise KeyboardInterrupt(*stopped.args) from None
