"""main(): the only place that turns errors into output and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from envgen.errors import EnvgenError, ExitCode
from envgen.redact import hidden_values
from envgen.text import hide, safe_output


def _report_defect(error: BaseException) -> int:
    """A defect of ours: say so, keep the traceback in a file, never spill it over the terminal."""
    import tempfile
    import traceback

    if os.environ.get("ENVGEN_DEBUG"):
        traceback.print_exception(error)
        return ExitCode.INTERNAL
    with tempfile.NamedTemporaryFile("w", prefix="envgen-defect-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    print(f"envgen: internal error: {type(error).__name__}: {error}\n  details: {file.name}", file=sys.stderr)
    return ExitCode.INTERNAL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code (docs/exit-codes.md)."""
    with safe_output():
        hide(hidden_values(os.environ))
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    try:
        return _run(argv)
    except EnvgenError as error:
        print(f"envgen: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("envgen: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `envgen ... | head`: the reader left. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        return _report_defect(error)


def _run(argv: Sequence[str] | None) -> int:
    """The command line, with click's own errors told. Click is half of a start, so it is imported here."""
    import click

    from envgen.cli import run

    try:
        code = run(argv)
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except click.Abort:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    sys.exit(main())
