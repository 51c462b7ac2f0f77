"""What the parts of the probe share. They run INSIDE the container.

Python 3.8 and later, standard library only, evidence and no judgement. Each part gets the request and the document so
far, and returns plain data; main.py guards each call. The packages in question are looked for, never imported.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict

Doc = Dict[str, Any]


def read_text(path: str, limit: int = 20000) -> str:
    """The beginning of a file; empty where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def listing(folder: str) -> list[str]:
    """The names in a folder; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder or "."))
    except OSError:
        return []


def entries(document: Doc) -> list[str]:
    """sys.path as the interpreter itself made it."""
    found: list[str] = document.get("python", {}).get("path", sys.path)
    return found


def call(argv: list[str], limit: float, **more: Any) -> tuple[str, str]:
    """(what a program prints, why it didn't): stdout only; killed when it takes longer."""
    stdin = {} if "input" in more else {"stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=limit, **stdin, **more)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return "", "took longer than %d s" % limit
    except OSError as error:
        return "", str(error.strerror)
    status = "ended with status %d" % done.returncode if done.returncode else ""
    return done.stdout.decode("utf-8", "replace"), status


def in_child(work: Callable[[int], object], limit: float) -> tuple[bytes, bool, int]:
    """(all that ``work`` writes to its descriptor, whether that took too long, how the child ended).

    What may hang or crash this process (an import hook, a driver) does so to a forked child.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            work(write)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    data, deadline, late = b"", time.time() + limit, False
    while not late:
        late = not select.select([read], [], [], max(0.0, deadline - time.time()))[0]
        chunk = b"" if late else os.read(read, 65536)
        if not chunk:
            break
        data += chunk
    os.close(read)
    if late:
        os.kill(pid, signal.SIGKILL)
    return data, late, os.waitpid(pid, 0)[1]
