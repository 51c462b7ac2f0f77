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
from concurrent.futures import Future, wait
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar

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
        lines = _Lines(note)
        for block in _blocks(child):
            lines.feed(*block)
            if on_tick:
                on_tick()
        child.wait()
    return ExecResult(child.returncode, b"", bytes(tail))


class OutputTooLong(Exception):
    """A program wrote more than it may."""


def exchange(
    argv: Sequence[str],
    stdin: bytes,
    *,
    timeout: float,
    limit: int,
    env: Mapping[str, str] | None = None,
    hold: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> ExecResult:
    """Send ``stdin`` to a program and return its whole output, of at most ``limit`` bytes.

    It has nothing to clean up, as `docker exec`: on an error it is killed. ``hold``: keep its stdin open until it
    ends, so that it can see that envgen was killed. ``on_line`` gets each line
    as it is written. ProcessTimeout, OutputTooLong: it was ended.
    """
    written = {"stdout": bytearray(), "stderr": bytearray()}
    deadline = time.monotonic() + timeout

    def send(pipe: IO[bytes]) -> None:  # in a thread: a program may fill its output before it has read its input
        with contextlib.suppress(OSError, ValueError):  # it ended without reading all of it
            pipe.write(stdin)
            pipe.flush()
            if not hold:
                pipe.close()

    with _started(argv, env, None, PIPE, ending=signal.SIGKILL) as child:
        assert child.stdin
        threading.Thread(target=send, args=(child.stdin,), daemon=True).start()
        lines = _Lines(lambda _channel, line: on_line(line.decode(errors="replace")) if on_line else None)
        for channel, data in _blocks(child):
            if channel:
                written[channel] += data
                lines.feed(channel, data)
            if sum(map(len, written.values())) > limit:
                raise OutputTooLong
            if time.monotonic() > deadline:
                raise ProcessTimeout(argv, timeout, written["stderr"].decode(errors="replace"))
        child.wait()
    return ExecResult(child.returncode, bytes(written["stdout"]), bytes(written["stderr"]))


def interactive(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, on_tick: Callable[[], None] = lambda: None
) -> int:
    """Run a program on our own terminal and return its exit code. Ctrl-C is the program's, not ours.

    ``on_tick`` is called every second.
    """
    # A handler, not SIG_IGN, which the program would inherit.
    with _handling(lambda _signum, _frame: None, signal.SIGINT):
        ended = in_background(_popen(argv, env).wait)
        while not wait([ended], 1.0).done:
            on_tick()
        return ended.result()


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
    for signum in (first, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: end it now
            deadline = time.monotonic() + GRACE
            for _ in _blocks(child):  # with a full pipe that nobody reads it would never end
                if child.poll() is not None or time.monotonic() > deadline:
                    break
            child.wait(max(0.0, deadline - time.monotonic()))
            break
    # A child may have ignored the first signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _started(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: int,
    stderr: int | None = PIPE,
    ending: signal.Signals = signal.SIGINT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in its own session: one signal reaches it and all its children, and Ctrl-C only envgen."""
    child = None
    with terminable():
        try:
            with _deferred():
                child = _popen(argv, env, cwd=cwd, stdin=stdin, stdout=PIPE, stderr=stderr, start_new_session=True)
            yield child
        except BaseException:
            if child and child.poll() is None:
                stop(child, ending)
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
def _deferred() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: while a program starts, it would be lost, and run on."""
    received: list[int] = []
    with _handling(lambda signum, _frame: received.append(signum), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
    if received:
        raise KeyboardInterrupt


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP act as Ctrl-C: clean up, then end. (A child in its own session gets none.)"""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


def _blocks(child: Child) -> Iterator[tuple[str, bytes]]:
    """What a program writes: ("stdout" | "stderr", bytes), b"" at the end of one; ("", b"") every ``TICK`` seconds."""
    with selectors.DefaultSelector() as selector:
        for channel, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            if pipe and not pipe.closed:
                selector.register(pipe, selectors.EVENT_READ, channel)
        while selector.get_map():
            for ready, _ in selector.select(TICK):
                if not (data := os.read(ready.fd, 64 << 10)):
                    selector.unregister(ready.fileobj)
                yield ready.data, data
            yield "", b""


class _Lines:
    """Cuts what a program writes into lines; a longer one than ``_LONGEST_LINE`` comes in pieces."""

    def __init__(self, on_line: Callable[[str, bytes], None]) -> None:
        self._on_line = on_line
        self._rest = {"stdout": b"", "stderr": b"", "": b""}

    def feed(self, channel: str, data: bytes) -> None:
        """The next bytes of a channel; b"" at its end."""
        *lines, rest = (self._rest[channel] + data).split(b"\n")
        if rest and (not data or len(rest) > _LONGEST_LINE):
            lines, rest = [*lines, rest], b""
        self._rest[channel] = rest
        for line in lines:
            self._on_line(channel, line.removesuffix(b"\r"))


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
