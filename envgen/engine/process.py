"""Runs other programs: an argv list, never a shell; a program's whole process group ends with envgen.

Secrets go into ``env`` or stdin, never into ``argv``, which every user of the machine can read.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from envgen.engine.values import ExecResult
from envgen.errors import EngineError, ProcessError
from envgen.text import Loudness, reason_of, shell_line

Child = subprocess.Popen[bytes]
PIPE = subprocess.PIPE
Late = subprocess.TimeoutExpired

# Seconds between the first signal and SIGKILL. buildx needs about one to stop the engine's build.
GRACE = 10.0
TICK = 0.2  # seconds
_TAIL = 64 << 10
_LONGEST_LINE = 1 << 20


class ProcessTimeout(ProcessError):
    """A program did not end in time; it and its children were killed."""

    def __init__(self, argv: Sequence[str], seconds: float, stderr: str) -> None:
        super().__init__(argv, -signal.SIGKILL, f"did not end within {seconds:g} s\n{stderr}".strip())


def run(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = 60,
    check: bool = True,
    on_tick: Callable[[], None] | None = None,
) -> ExecResult:
    """Run a program and return its output. With ``check`` ProcessError unless it ends with 0.

    ``on_tick`` is called every ``TICK`` seconds; what it raises ends the program. Not with ``stdin``, of which Python
    sends no more after the first tick.
    """
    assert stdin is None or on_tick is None
    deadline = None if timeout is None else time.monotonic() + timeout
    with _started(argv, env, cwd, subprocess.PIPE if stdin is not None else subprocess.DEVNULL) as child:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                stdout, stderr = child.communicate(stdin, timeout=TICK if on_tick and (left or TICK) >= TICK else left)
                break
            except subprocess.TimeoutExpired as error:
                if deadline is not None and time.monotonic() >= deadline:
                    stop(child, signal.SIGKILL)
                    raise ProcessTimeout(argv, timeout or 0, (error.stderr or b"").decode(errors="replace")) from None
            if on_tick:
                on_tick()
    if check and child.returncode:
        raise ProcessError(argv, child.returncode, stderr.decode(errors="replace"))
    return ExecResult(child.returncode, stdout, stderr)


def stream(
    argv: Sequence[str],
    on_line: Callable[[str, bytes], None],
    *,
    env: Mapping[str, str] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> ExecResult:
    """Run a program and hand each line to ``on_line("stdout" | "stderr", line)`` as it comes, without its newline.

    ``on_tick`` is called at least every ``TICK`` seconds, for a display. The result has the exit code, which is not
    checked, and the last 64 KiB of stderr.
    """
    tail = bytearray()

    def note(channel: str, line: bytes) -> None:
        if channel == "stderr":
            tail.extend(line + b"\n")
            del tail[:-_TAIL]
        on_line(channel, line)

    with _started(argv, env, None, subprocess.DEVNULL) as child:
        for _ in _pump(child, note):
            if on_tick:
                on_tick()
        child.wait()
    return ExecResult(child.returncode, b"", bytes(tail))


def interactive(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program on our own terminal and return its exit code. Ctrl-C is the program's, not ours."""
    # A handler, not SIG_IGN, which the program would inherit.
    with _handling(lambda _signum, _frame: None, signal.SIGINT):
        return _popen(argv, env).wait()


def on_terminal(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> ExecResult:
    """Run a program that draws on our standard error. Ctrl-C ends it, as in ``run``."""
    with _started(argv, env, None, subprocess.DEVNULL, stderr=None) as child:
        return ExecResult(child.wait(), b"", b"")


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = subprocess.DEVNULL,
    stderr: Any = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a program in the background, in its own session; the caller ends it."""
    return _popen(argv, env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)


def show_command(argv: Sequence[str]) -> None:
    """With `--verbose`, print a program before it runs."""
    if Loudness.verbose:
        print(f"$ {shell_line(argv)}", file=sys.stderr, flush=True)


def _popen(argv: Sequence[str], env: Mapping[str, str] | None, **options: Any) -> subprocess.Popen[bytes]:
    show_command(argv)
    try:
        merged = {**os.environ, **env} if env else None
        return subprocess.Popen(list(argv), env=merged, **options)
    except FileNotFoundError:
        hint = "install it, or put its folder on PATH"
        raise EngineError(f"the program {argv[0]!r} is not installed", hint=hint) from None
    except OSError as error:
        raise EngineError(f"cannot run {argv[0]}: {reason_of(error)}") from None


def stop(child: subprocess.Popen[bytes], first: signal.Signals = signal.SIGINT) -> None:
    """End a program and its children: ``first``, then SIGKILL after ``GRACE`` seconds. Leaves no zombie."""
    for signum, wait in ((first, GRACE), (signal.SIGKILL, GRACE)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: end it now
            # With a full pipe that nobody reads it would never end.
            child.communicate(timeout=wait) if child.stdout else child.wait(wait)
            break
    # A child may have ignored the first signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _started(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, stdin: int, stderr: int | None = PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in its own session: one signal reaches it and all its children, and Ctrl-C only envgen."""
    child = None
    with terminable():
        try:
            child = _popen(argv, env, cwd=cwd, stdin=stdin, stdout=PIPE, stderr=stderr, start_new_session=True)
            yield child
        except BaseException:
            if child and child.poll() is None:
                stop(child)
            raise
        finally:
            for pipe in (child.stdin, child.stdout, child.stderr) if child else ():
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], *signals: signal.Signals) -> Iterator[None]:
    """Sets ``handler`` for these signals, in the main thread, which alone may do so."""
    ours = signals if threading.current_thread() is threading.main_thread() else ()
    before = {signum: signal.signal(signum, handler) for signum in ours}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old or signal.SIG_DFL)  # None: not set by Python


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP act as Ctrl-C: clean up, then end. (A child in its own session gets none.)"""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


def _pump(child: subprocess.Popen[bytes], on_line: Callable[[str, bytes], None]) -> Iterator[None]:
    """Calls ``on_line`` for lines of both pipes; yields after each read and at least every ``TICK`` seconds."""
    assert child.stdout and child.stderr
    rest = {"stdout": bytearray(), "stderr": bytearray()}
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, "stdout")
        selector.register(child.stderr, selectors.EVENT_READ, "stderr")
        while selector.get_map():
            for ready, _ in selector.select(TICK):
                data = os.read(ready.fd, 64 << 10)
                buffer = rest[ready.data]
                if not data:
                    selector.unregister(ready.fileobj)
                    if buffer:
                        on_line(ready.data, bytes(buffer))
                    continue
                buffer += data
                *lines, last = bytes(buffer).split(b"\n")
                if len(last) > _LONGEST_LINE:
                    lines, last = [*lines, last], b""
                rest[ready.data] = bytearray(last)
                for line in lines:
                    on_line(ready.data, line.removesuffix(b"\r"))
            yield


T = TypeVar("T")


def in_background(ask: Callable[[], T]) -> Future[T]:
    """Runs ``ask()`` in a daemon thread, unlike an executor's: Ctrl-C does not wait for it."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer
