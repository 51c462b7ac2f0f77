"""`envgen explain`: the cause of a failure, from a log."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from envgen.cli.common import answer, json_option
from envgen.errors import ExitCode, UsageError
from envgen.explain import Explanation, classify, log_lines
from envgen.explain.first import Tracker
from envgen.files import NotAFile, state_dir
from envgen.text import counted, reason_of, shorten, visible

LARGEST = 256 << 20  # bytes of a bundle's log


@click.command()
@click.argument("log", required=False, type=click.Path(path_type=Path, allow_dash=True))
@json_option
def command(log: Path | None) -> int:
    """Explain the log of a build, a kernel compilation or a server: cause, evidence, fix.

    LOG is a file, a crash bundle, or `-` for stdin (default: the newest build log of the project). If the failure is
    unknown, the first exception of the first failed process is shown. Exits with 1 if a known failure is found.

    \b
    Examples:
      envgen explain .envgen/logs/build-dev-20260101T120000.log
      docker logs -f prod-serve-1 2>&1 | envgen explain -
    """
    name, count, tracker = str(log or _newest()), 0, Tracker()

    def read(file: BinaryIO) -> Iterator[str]:
        nonlocal count
        with contextlib.suppress(KeyboardInterrupt):
            for line in log_lines(file):
                count += 1
                tracker.feed(line)
                yield line

    with sys.stdin.buffer if name == "-" else open_log(Path(name)) as file:
        found = classify(read(file))
    code = ExitCode.FINDINGS if any(one.failure for one in found) else ExitCode.OK
    first = tracker.first
    raised = {"process": first.process, "text": first.text, "line": first.line} if first else None
    document = {"log": name, "lines": count, "explanations": [one.data() for one in found], "first_exception": raised}
    lines = [_text(found, name, count)]
    if first and code is ExitCode.OK:
        where = f" of {first.process}" if first.process else ""
        lines.append(visible(f"      first exception{where}: {name}:{first.line}: {first.text}"))
    return answer(document, lines, code)


def open_log(path: Path) -> BinaryIO:
    """Open a log, or a pipe (``explain <(docker logs serve)``). A FIFO without a writer is empty; nothing waits."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            file.close()
            raise NotAFile(path, "is not a log file")
        os.set_blocking(file.fileno(), True)
        return _of_bundle(path, file) if path.name.endswith(".tar.gz") else file
    except (OSError, EOFError, tarfile.TarError, zlib.error) as problem:
        hint = "name a log file, or `-` for stdin"
        why = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        raise UsageError(f"{path} can't be read: {why}", hint=hint) from None


def _of_bundle(path: Path, file: BinaryIO) -> BinaryIO:
    """The server's log in a crash bundle, at most ``LARGEST`` bytes."""
    with file, tarfile.open(fileobj=file, mode="r:gz") as bundle:
        for member in bundle:
            if member.isfile() and member.name.endswith("server.log") and (log := bundle.extractfile(member)):
                return io.BytesIO(log.read(LARGEST))
    raise UsageError(f"{path} has no server.log", hint="name a crash bundle of `envgen up`, or a log file")


def _newest() -> Path:
    """The newest build log of the project that the current folder belongs to."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        logs = [path for path in state_dir(folder, "logs").glob("*.log") if stat.S_ISREG(path.lstat().st_mode)]
        if logs:
            return max(logs, key=lambda path: path.lstat().st_mtime)
    raise UsageError("no build log here", hint="name a log file: envgen explain LOG, or `-` for stdin")


def _text(found: tuple[Explanation, ...], name: str, lines: int) -> str:
    if not found:
        return f"{name}: no known failure found in {counted(lines, 'line')}"
    return "\n".join(
        f"{'FAIL' if one.failure else 'note'}  {one.cause} ({one.rule})\n"
        f"      {name}:{one.line}: {shorten(one.evidence.strip(), 400)}\n"
        f"      fix:  {one.cure}\n"
        f"      more: {one.link}"
        for one in found
    )
