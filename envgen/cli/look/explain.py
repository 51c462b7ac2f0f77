"""`envgen explain`: what a log says about why it ended as it did."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

import click

from envgen.cli.common import json_option, print_json
from envgen.errors import ExitCode, UsageError
from envgen.explain import Classifier, Explanation
from envgen.explain.stream import pieces
from envgen.files import NotAFile, state_dir
from envgen.text import counted, progress, reason_of, shorten


@click.command()
@click.argument("log", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--kind", type=click.Choice(["build", "jit", "serve"]), help="Ask only the rules for such logs.")
@json_option
def command(log: Path | None, kind: str | None, as_json: bool) -> int:
    """Explain a log of a build, of a kernel's compilation or of a server: cause, evidence, cure.

    LOG is a file, or `-` for stdin; default: the project's newest build log. What is found while a program still
    writes is printed at once, on stderr; Ctrl-C ends the reading, and what is known by then is printed. Exit code 0: no
    failure is known in it; 1: one is.

    \b
    Example:
      envgen explain .envgen/logs/build-dev-20260101T120000.log
      docker logs -f prod-serve-1 2>&1 | envgen explain -
      envgen explain server.log --json
    """
    classifier = Classifier(kind)
    if log is not None and str(log) == "-":
        _read(sys.stdin.buffer, classifier, live=not as_json)
        name = "-"
    else:
        path = log or _newest()
        name = str(path)
        with open_log(path) as file:
            _read(file, classifier, live=False)
    found = classifier.result()
    if as_json:
        print_json({"log": name, "lines": classifier.lines, "explanations": [one.data() for one in found]})
    else:
        click.echo(_text(found, name, classifier.lines))
    return ExitCode.FINDINGS if any(one.failure for one in found) else ExitCode.OK


def _read(file: BinaryIO, classifier: Any, *, live: bool) -> None:
    try:
        for lines in pieces(file):  # type: ignore[arg-type]
            for one in classifier.feed(lines):
                if live:
                    progress(f"  line {one.line}: {one.rule}: {one.cause}")
    except KeyboardInterrupt:
        progress("  stopped reading")


def open_log(path: Path) -> BinaryIO:
    """A log, or a pipe (``explain <(docker logs serve)``); one that nothing writes to is empty, not waited for."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            file.close()
            raise NotAFile(path, "is not a log file")
        os.set_blocking(file.fileno(), True)
        return file
    except OSError as problem:
        raise UsageError(
            f"{path} can't be read: {reason_of(problem)}", hint="name a log file, or `-` for stdin"
        ) from None


def _newest() -> Path:
    """The newest build log of the project that the current folder belongs to."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        logs = [path for path in state_dir(folder, "logs").glob("*.log") if stat.S_ISREG(path.lstat().st_mode)]
        if logs:
            return max(logs, key=lambda path: path.lstat().st_mtime)
    raise UsageError("there is no build log here", hint="name a log file: envgen explain LOG, or `-` for stdin")


def _text(found: tuple[Explanation, ...], name: str, lines: int) -> str:
    if not found:
        return f"{name}: no rule knows a failure in {counted(lines, 'line')}"
    parts = []
    for one in found:
        parts += [
            f"{'FAIL' if one.failure else 'note'}  {one.cause} ({one.rule})",
            f"      {name}:{one.line}: {shorten(one.evidence.strip(), 400)}",
            f"      fix:  {one.cure}",
            f"      more: {one.link}",
        ]
    return "\n".join(parts)
