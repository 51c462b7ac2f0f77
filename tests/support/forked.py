"""envgen in a process of its own that costs milliseconds: forked from one that has all of envgen imported.

A new interpreter and its imports cost half a second of a core, a thousand times. What runs is the same: `main()` in a
process with the caller's folder, environment, umask, standard streams and process group, ended as Python ends. Where a
test is about how the interpreter starts, or about signals and terminals, it starts one itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# Python reads these once, when it starts.
_AT_START = ("PYTHON", "LANG", "LC_")

_server: tuple[int, socket.socket, subprocess.Popen[bytes]] | None = None
_lock = threading.Lock()


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float = 1800
) -> subprocess.CompletedProcess[str]:
    """``envgen WORDS``, as ``subprocess.run`` would run it, with nothing on its standard input."""
    argv = [sys.executable, "-m", "envgen", *words]
    if _start_up(env) != _start_up(os.environ):
        return subprocess.run(
            argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    umask = os.umask(0)
    os.umask(umask)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    ours, theirs = socket.socketpair()
    with Path(os.devnull).open("rb") as nothing, theirs:
        socket.send_fds(_running(), [b"run"], [theirs.fileno(), nothing.fileno(), out_write, err_write])
    os.close(out_write)
    os.close(err_write)
    ours.sendall(json.dumps([list(words), str(cwd), dict(env), umask]).encode() + b"\n")
    return _finish(argv, ours, (out_read, err_read), timeout)


def _start_up(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_AT_START)}


def _finish(
    argv: list[str], ours: socket.socket, pipes: tuple[int, int], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Read all output and the exit code; a process that is too slow is killed."""
    ours.settimeout(timeout)
    with ours.makefile() as lines, ours:
        pid = int(lines.readline())
        readers = [_Reader(pipe) for pipe in pipes]
        for reader in readers:
            reader.join(timeout)
        try:
            if any(reader.is_alive() for reader in readers):
                raise TimeoutError
            code = int(lines.readline())
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, timeout, *(reader.text for reader in readers)) from None
    return subprocess.CompletedProcess(argv, code, *(reader.text for reader in readers))


class _Reader(threading.Thread):
    def __init__(self, pipe: int) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self._file: IO[str] = os.fdopen(pipe)
        self.start()

    def run(self) -> None:
        with self._file:
            self.text = self._file.read()


def _running() -> socket.socket:
    """Where requests go: to one server for this process (a fork of it gets its own)."""
    global _server
    with _lock:
        if _server is None or _server[0] != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            argv = [sys.executable, __file__, str(theirs.fileno())]
            child = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            theirs.close()
            _server = os.getpid(), ours, child
        return _server[1]


# --- the server -------------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> list[str]:
    """For each request a process that forks the real one and tells its end, until the tests end.

    Returns in the real one, with its words.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those that it started
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, files, *_ = socket.recv_fds(requests, 16, 4)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    caller, *streams = files
    if child := os.fork():
        for file in streams:
            os.close(file)
        with socket.socket(fileno=caller) as reply, contextlib.suppress(OSError):  # the tests may have ended
            reply.send(b"%d\n" % child)
            reply.send(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with os.fdopen(caller, "rb") as request:
        words, cwd, env, umask = json.loads(request.readline())
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(env)
    return list(words)


def _import_all() -> None:
    from envgen.cli import GROUPS

    for folder, rows in GROUPS.values():
        for name in ", ".join(rows).split(", "):
            importlib.import_module(f"envgen.cli.{folder}.{name}")


def _main() -> None:
    sys.path.pop(0)  # this folder
    import envgen.__main__ as program
    import envgen.cli.program  # noqa: F401 - and all that it imports

    _import_all()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        words = _serve(requests)
    sys.argv = [str(program.__file__), *words]
    code = program.main()
    # What Python does at its end, but for freeing each object: that would copy the memory shared with the server.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
