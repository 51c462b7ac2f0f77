"""A foreign Python that costs a fork: `python -c` in a process that has imported large libraries before.

PyTorch, Transformers and other libraries are most of what an import of vLLM costs, and none of what differs between
questions to a release. vLLM itself is imported anew by each, or before the first (import_vllm.py).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# What envgen starts in the foreign Python's place: it hands all that a process has to the server, and ends as it ends.
PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({place!r})
socket.send_fds(server, [b"+"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
sys.exit(int(server.makefile().readline() or 1))
"""


@contextlib.contextmanager
def warm_python(python: Path, modules: Sequence[str], env: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """A program in ``folder`` to be called like ``python``, which imports ``modules`` once, with these variables.

    A module may be a file, which is run.
    """
    place = str(folder / "socket")
    program = folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, place=place), encoding="utf-8")
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind(place)
        asked.listen()
        argv = [str(python), __file__, str(asked.fileno()), *modules]
        with subprocess.Popen(argv, env=env, cwd=folder, pass_fds=[asked.fileno()], stdin=subprocess.DEVNULL) as server:
            try:
                yield program
            finally:
                server.terminate()


def serve(asked: socket.socket) -> str:
    """For each caller a process; returns in it, with the code to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        caller, _ = asked.accept()
        if os.fork() == 0:
            break
        caller.close()
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, *_ = socket.recv_fds(caller, 1, 3)
    with caller.makefile() as request:
        argv, cwd, env = json.loads(request.readline())
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        caller.sendall(b"%d\n" % code)
        os._exit(0)
    caller.close()
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    option, code, *words = argv
    assert option == "-c", argv
    sys.argv = ["-c", *words]
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    return str(code)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    for name in sys.argv[2:]:
        runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        text = serve(listening)
    exec(text, {"__name__": "__main__"})
