"""Runs inside a container: runs a benchmark tool, and returns its output.

``probe`` returns the tools' versions; ``run`` runs one of them once. llama-benchy gets its book of
prompts from a server on loopback, since it would download one. Its files go into a temporary
folder.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Iterator

from envgen.inside.common import Doc, read_text

LINES = 20  # of a tool's output
LONGEST = 2 << 20  # bytes of a result
METER = [
    "nvidia-smi",
    "--query-gpu=index,power.draw,memory.used,clocks_event_reasons.active",
    "--format=csv,noheader,nounits",
    "--loop=1",
]


def answer(request: Doc) -> Doc:
    """``probe`` or ``run``."""
    return probe(request) if request["verb"] == "probe" else run(request)


def probe(request: Doc) -> Doc:
    """The version of each of the ``tools``; "" when it is not installed."""
    versions = {}
    for tool, (module, distributions) in request["tools"].items():
        versions[tool] = "unknown" if importlib.util.find_spec(module) else ""
        for name in distributions if versions[tool] else ():
            with suppress(metadata.PackageNotFoundError):
                versions[tool] = metadata.version(name)
    return versions


def run(request: Doc) -> Doc:
    """Run the tool, with the paths of files for {book}, {result} and {folder}. Kill it after
    ``silence`` seconds without output.
    """
    folder = tempfile.mkdtemp(prefix="envgen-bench-")
    names = {name: f"{folder}/{name}" for name in ("result", "output", "book", "progress")}
    with open(names["book"], "w", encoding="utf-8") as file:
        file.write(str(request["book"]))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        book = f"http://127.0.0.1:{server.server_address[1]}/book"
        words = [sys.executable, *map(str, request["words"])]
        for name, value in dict(names, book=book, folder=folder).items():
            words = [value if word == f"{{{name}}}" else word for word in words]
        env = dict(os.environ, HOME=folder, PYTHONUNBUFFERED="1", NO_PROXY="127.0.0.1,localhost")
        # The weights' cache is below the old HOME, unless a variable names it.
        env.setdefault("HF_HOME", f"{os.path.expanduser('~')}/.cache/huggingface")
        env.update(request["env"], no_proxy=env["NO_PROXY"])
        began = time.monotonic()
        meter = f"{folder}/meter"
        drafts = [counters(request["metrics"])]
        with metered(meter):
            code = watch(words, env, names, float(request["silence"]))
        drafts.append(counters(request["metrics"]))
        output, result = (read_text(names[name], LONGEST) for name in ("output", "result"))
        lines = output.splitlines()
        return {
            "code": code,
            "seconds": time.monotonic() - began,
            "result": result,
            "tail": lines[-LINES:],
            "drafts": drafts,
            "meter": read_text(meter, LONGEST // 2).splitlines(),
            "ended": ended(names["progress"]),
            "fell_back": [line for line in lines if "Falling back" in line][:3],
        }
    finally:
        server.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def ended(path: str) -> list[str]:
    """The lines of llama-benchy's progress that tell how a request ended."""
    with suppress(OSError), open(path, encoding="utf-8") as lines:
        return [line for line in lines if '"type":"request_end"' in line]
    return []


def counters(url: str) -> list[str]:
    """The lines of vLLM's metrics that count drafts; none where it has no such page."""
    proxy = urllib.request.ProxyHandler({})
    try:
        with urllib.request.build_opener(proxy).open(url, timeout=30) as reply:
            text = reply.read(8 << 20).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    return [line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_")]


@contextmanager
def metered(path: str) -> Iterator[None]:
    """Write what each GPU draws and holds into ``path``, once a second, where a program tells it."""
    with open(path, "wb") as output:
        try:
            child = subprocess.Popen(
                METER, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
            )
        except OSError:
            yield
            return
    try:
        yield
    finally:
        child.kill()
        child.wait()


def watch(words: list[str], env: dict[str, str], names: dict[str, str], silence: float) -> int:
    """Run it to its end; -9 where it was killed after a silence."""
    with open(names["output"], "wb") as output:
        child = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    last = time.monotonic()
    last_size = -1
    try:
        while time.monotonic() - last <= silence:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(0.2)
            there = filter(os.path.exists, names.values())
            size = sum(map(os.path.getsize, there))
            if size != last_size:
                last = time.monotonic()
                last_size = size
        return -9
    finally:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
