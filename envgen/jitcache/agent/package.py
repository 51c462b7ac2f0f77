"""Which FlashInfer this container imports, asked of its own Python: the agent itself runs without site-packages."""

from __future__ import annotations

import os

# Looks without importing, which would bring torch along. Prints: package folder, version, the folder of AOT libraries.
_ASK = """
import importlib.util, os, sys
def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return ""
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
root = os.path.realpath(folder("flashinfer")) if folder("flashinfer") else ""
version = "0.0.0+unknown" if root else ""
try:
    with open(root + "/_build_meta.py", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.split(":")[0].strip() == "__version__":
                version = value.strip().strip("\\"'")
except (OSError, ValueError):
    pass
aot = folder("flashinfer_jit_cache")
aot = aot + "/jit_cache" if aot else root + "/data/aot" if root else ""
sys.stdout.buffer.write(b"\\0".join(os.fsencode(part) for part in ("envgen", root, version, aot)))
"""


class Package:
    """``root`` is the folder that Python imports, resolved; ``aot`` where libraries would win over compiled ones."""

    __slots__ = ("aot", "root", "version")

    def __init__(self, root: str, version: str, aot: str) -> None:
        self.root = root
        self.version = version
        self.aot = aot


def spawn(python: str, text: str) -> tuple[int, int]:
    """Start Python on a text; its pid, and where its output can be read. subprocess would cost more than all else."""
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
        return os.posix_spawnp(python, [python, "-c", text], dict(os.environ), file_actions=actions), read
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
        os.close(null)


class Asked:
    """The question is on its way; ``answer`` waits for it. Start it early: it takes a Python's start, 50 ms."""

    def __init__(self, python: str, ask: str = _ASK) -> None:
        self.pid = 0
        self.fd = -1
        self.known = Package("", "", "")
        if not python:
            return
        try:
            self.pid, self.fd = spawn(python, "import sys; sys.path[:] = [p for p in sys.path if p]\n" + ask)
        except OSError:
            pass  # then nothing is known

    def answer(self) -> Package:
        """Wait for it. Everything is empty where Python could not be asked or has no FlashInfer."""
        if not self.pid:
            return self.known
        parts = []
        while True:
            part = os.read(self.fd, 65536)
            if not part:
                break
            parts.append(part)
        os.close(self.fd)
        os.waitpid(self.pid, 0)
        self.pid = 0
        # What is printed while Python starts (a .pth file, a sitecustomize) comes before our own words.
        words = b"".join(parts).rpartition(b"envgen\0")[2].split(b"\0")
        if len(words) == 3:
            self.known = Package(*(os.fsdecode(word) for word in words))
        return self.known


def interpreter(request: dict[str, object]) -> str:
    """The service's own Python, by the profile's name for it; empty: it is not asked."""
    return str(request.get("python") or "")
