"""Runs other programs: an argv list, never a shell; a program's whole process group ends with
envgen.

Secrets go into ``env`` or stdin, never into ``argv``, which every user of the machine can read.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar

from envgen.engine.values import ExecResult
from envgen.errors import EngineError, EngineTimeout, ProcessError
from envgen.text import Verbosity, reason_of, shell_line

# DOCKER_HOST of an engine -> a question to it; EngineTimeout where it no longer answers
Probe = Callable[[], object]
PROBES: dict[str, Probe] = {}
PIPE = subprocess.PIPE

# Seconds between the first signal and SIGKILL. buildx needs about one to stop the engine's build.
GRACE = 10.0
TICK = 0.2  # seconds
AGAIN = 5.0  # seconds until an engine is asked again
_TAIL = 64 << 10
_LONGEST_LINE = 1 << 20


class ProcessTimeout(ProcessError):
    """A program did not end in time; it and its children were killed."""

    def __init__(self, argv: Sequence[str], seconds: float, stderr: str) -> None:
        super().__init__(
            argv, -signal.SIGKILL, f"did not end within {seconds:g} s\n{stderr}".strip()
        )


class Child(subprocess.Popen[bytes]):
    """A program. One of Docker's would wait for a silent engine for ever: it is ended."""

    _silent: EngineTimeout | None = None

    def watch(self, probe: Probe) -> None:
        """In a thread: asks the engine as long as the program runs."""
        try:
            time.sleep(AGAIN)
            while self.poll() is None:
                probe()
                time.sleep(AGAIN)
        except EngineTimeout as error:
            self._silent = error
            self.terminate()
            time.sleep(GRACE)
            self.kill()  # in the middle of an answer, some don't end before

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. EngineTimeout where its engine is silent."""
        code = super().wait(timeout)
        if self._silent:
            raise self._silent
        return code


class OutputTooLong(Exception):
    """A program wrote more than it may."""


def run(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] = {},
    cwd: Path | None = None,
    timeout: float | None = 60,
    check: bool = True,
    on_line: Callable[[str], None] | None = None,
    limit: int | None = None,
    hold: bool = False,
    ending: signal.Signals = signal.SIGINT,
) -> ExecResult:
    """Run a program and return its output. With ``check`` ProcessError unless it ends with 0.

    ``on_line`` gets each line as it comes, without its newline.
    What it raises ends the program, and so do ProcessTimeout and
    OutputTooLong (more than ``limit`` bytes; without it, of a program with ``on_line`` only the
    last 64 KiB are returned). ``ending``: the first signal to it then. ``hold``: keep its stdin
    open until it ends, so that it can see that envgen was killed.
    """
    written = {"stdout": bytearray(), "stderr": bytearray()}
    deadline = None if timeout is None else time.monotonic() + timeout
    rest = {"stdout": b"", "stderr": b""}
    with _started(
        argv, env, cwd, subprocess.DEVNULL if stdin is None else PIPE, ending=ending
    ) as child:
        if child.stdin:
            sender = threading.Thread(target=_send, args=(child.stdin, stdin, hold), daemon=True)
            sender.start()
        for channel, data in _blocks(child):
            if channel:
                written[channel] += data
            if on_line and channel:
                for line in _lines(rest, channel, data):
                    on_line(line)
                if limit is None:  # it may write for hours
                    del written[channel][:-_TAIL]
            if limit is not None and sum(map(len, written.values())) > limit:
                raise OutputTooLong
            if deadline is not None and time.monotonic() > deadline:
                stop(child, signal.SIGKILL)
                raise ProcessTimeout(argv, timeout or 0, written["stderr"].decode(errors="replace"))
        child.wait()
    if check and child.returncode:
        raise ProcessError(argv, child.returncode, written["stderr"].decode(errors="replace"))
    return ExecResult(child.returncode, bytes(written["stdout"]), bytes(written["stderr"]))


def _send(pipe: IO[bytes], data: bytes, hold: bool) -> None:
    """In a thread: a program may fill its output before it has read its input."""
    with suppress(OSError, ValueError):  # it ended without reading all of it
        pipe.write(data)
        pipe.flush()
        if not hold:
            pipe.close()


def interactive(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program on our own terminal and return its exit code. Ctrl-C is the program's, not
    ours.
    """
    modes = termios.tcgetattr(0) if os.isatty(0) else []
    # A handler, not SIG_IGN, which the program would inherit.
    with _handling(lambda _signum, _frame: None, signal.SIGINT):
        try:
            return _popen(argv, env).wait()
        finally:
            if modes and termios.tcgetattr(0) != modes:  # it was killed
                termios.tcsetattr(0, termios.TCSANOW, modes)


def on_terminal(argv: Sequence[str], env: Mapping[str, str]) -> ExecResult:
    """Run a program that draws on our standard error. Ctrl-C ends it, as in ``run``."""
    with _started(argv, env, None, subprocess.DEVNULL, stderr=None) as child:
        return ExecResult(child.wait(), b"", b"")


def start(argv: Sequence[str]) -> Child:
    """Start a program in the background, in its own session; the caller ends it. Its stdin and
    stderr are pipes.
    """
    return _popen(
        argv, {}, stdin=PIPE, stdout=subprocess.DEVNULL, stderr=PIPE, start_new_session=True
    )


def show_command(argv: Sequence[str]) -> None:
    """With `--verbose`, print a program before it runs."""
    if Verbosity.on:
        print(f"$ {shell_line(argv)}", file=sys.stderr, flush=True)


def _popen(argv: Sequence[str], env: Mapping[str, str], **options: Any) -> Child:
    show_command(argv)
    try:
        child = Child(argv, env={**os.environ, **env}, **options)
    except FileNotFoundError:
        hint = "install it, or put its folder on PATH"
        raise EngineError(f"the program {argv[0]!r} is not installed", hint=hint) from None
    except OSError as error:
        raise EngineError(f"cannot run {argv[0]}: {reason_of(error)}") from None
    if probe := PROBES.get(env.get("DOCKER_HOST", "")):
        in_background(lambda: child.watch(probe))
    return child


def stop(child: Child, first: signal.Signals = signal.SIGINT) -> None:
    """End a program and its children: ``first``, then SIGKILL after ``GRACE`` seconds. Leaves no
    zombie.
    """
    for signum in (first, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signum)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: end it now
            deadline = time.monotonic() + GRACE
            for _ in _blocks(child):  # with a full pipe that is not read it would never end
                if child.poll() is not None or time.monotonic() > deadline:
                    break
            child.wait(max(0.0, deadline - time.monotonic()))
            break
    # A child may have ignored the first signal.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def _started(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    stdin: int,
    stderr: int | None = PIPE,
    ending: signal.Signals = signal.SIGINT,
) -> Iterator[Child]:
    """A program in its own session: one signal reaches it and all its children, and Ctrl-C only
    envgen.
    """
    child = None
    with terminable():
        try:
            with _deferred():
                child = _popen(
                    argv,
                    env,
                    cwd=cwd,
                    stdin=stdin,
                    stdout=PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            yield child
        except BaseException:
            if child and child.poll() is None:
                stop(child, ending)
            raise
        finally:
            for pipe in (child.stdin, child.stdout, child.stderr) if child else ():
                if pipe:
                    with suppress(OSError):
                        pipe.close()


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], *signals: signal.Signals
) -> Iterator[None]:
    """Sets ``handler`` for these signals, in the main thread, which alone may do so."""
    ours = signals if threading.current_thread() is threading.main_thread() else ()
    before = {signum: signal.signal(signum, handler) for signum in ours}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old or signal.SIG_DFL)  # None: not set by Python


@contextmanager
def _deferred() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: while a program starts, it would be lost, and run on."""
    received = []
    with _handling(
        lambda signum, _frame: received.append(signum), signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    ):
        yield
    if received:
        raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP act as Ctrl-C: clean up, then end. (A child in its own session
    gets none.)
    """

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


def _blocks(child: Child) -> Iterator[tuple[str, bytes]]:
    """What a program writes: ("stdout" | "stderr", bytes), b"" at the end of one; ("", b"") every
    ``TICK`` seconds.
    """
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


def _lines(rest: dict[str, bytes], channel: str, data: bytes) -> list[str]:
    """The lines that are whole with the next bytes of a channel (b"" at its end); ``rest`` keeps
    what is not. A longer one than ``_LONGEST_LINE`` comes in pieces.
    """
    *lines, left = (rest[channel] + data).split(b"\n")
    if left and (not data or len(left) > _LONGEST_LINE):
        lines.append(left)
        left = b""
    rest[channel] = left
    texts = []
    for line in lines:
        plain = line.removesuffix(b"\r")
        texts.append(plain.decode(errors="replace"))
    return texts


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
