"""Runs inside a container: finds a benchmark tool, runs it, and hands over what it wrote.

``probe`` names the tool's version and the options that it knows. ``run`` runs it once. The book that llama-benchy cuts
prompts from is served to it on loopback, because it would download one. Its files go into a folder that is removed.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from typing import Any, Dict, List

Doc = Dict[str, Any]

LINES = 20  # of a tool's output that are handed over
LONGEST = 2 << 20  # bytes of a result


def answer(request: Doc) -> Doc:
    """``probe`` or ``run``."""
    return probe(request) if request["verb"] == "probe" else run(request)


def probe(request: Doc) -> Doc:
    """``version`` ("" when it is not installed) and ``help``."""
    module = str(request["module"])
    if importlib.util.find_spec(module.split(".")[0]) is None:
        return {"version": "", "help": ""}
    version = "unknown"
    for name in request["distributions"]:
        try:
            version = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            continue
    if not request["help"]:
        return {"version": version, "help": ""}
    # Its own process: a tool may exit, print or import anything.
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=120,
    )  # fmt: skip
    return {"version": version, "help": done.stdout.decode("utf-8", "replace")[:100000]}


def run(request: Doc) -> Doc:
    """Run the tool; {book}, {result} and {progress} in its words become addresses of files.

    ``silence``: seconds without a line of output or progress, after which it is killed.
    """
    folder = tempfile.mkdtemp(prefix="envgen-bench-")
    server = book_server(str(request["book"]).encode("utf-8")) if request.get("book") else None
    try:
        names = {name: os.path.join(folder, name) for name in ("result", "progress", "output")}
        book = "http://127.0.0.1:%d/book.txt" % server.server_address[1] if server else ""
        words = [sys.executable] + [
            str(word).format(book=book, folder=folder, **names) for word in request["words"]
        ]  # fmt: skip
        env = dict(os.environ, HOME=folder, PYTHONUNBUFFERED="1", NO_PROXY="127.0.0.1,localhost")
        # The weights' cache is where HOME was, unless a variable says it.
        env.setdefault("HF_HOME", os.path.join(os.path.expanduser("~"), ".cache", "huggingface"))
        env.update(no_proxy=env["NO_PROXY"], **{str(k): str(v) for k, v in request.get("env", {}).items()})
        began = time.time()
        code = watch(words, env, names, float(request["silence"]))
        found = {name: read(path) for name, path in names.items()}
        return {
            "code": code,
            "seconds": time.time() - began,
            "result": found["result"],
            "progress": requests_of(found["progress"]),
            "tail": found["output"].splitlines()[-LINES:],
            "fell_back": [line for line in found["output"].splitlines() if "Falling back" in line][:3],
        }
    finally:
        if server:
            server.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def watch(words: List[str], env: Dict[str, str], names: Dict[str, str], silence: float) -> int:
    """Run it to its end; -9 when it was killed because it showed no sign of life."""
    with open(names["output"], "wb") as output:
        child = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        last, seen = time.time(), -1
        while True:
            try:
                return child.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
            size = sum(os.path.getsize(path) for path in names.values() if os.path.exists(path))
            if size != seen:
                last, seen = time.time(), size
            elif time.time() - last > silence:
                return -9
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        child.wait()


def read(path: str) -> str:
    """A file's text; "" when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def requests_of(text: str) -> List[Doc]:
    """One entry a request out of llama-benchy's progress events (llama-benchy-progress.v1)."""
    found: Dict[Any, Doc] = {}
    for line in text.splitlines():
        try:
            event = json.loads(line)
            kind, one = event["type"], found.setdefault(event.get("request_id"), {})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line that is not whole yet, or of another version
        if kind == "request_start":
            one["began"] = event.get("ts")
        elif kind == "request_first_token":
            one["ttft_s"] = event.get("ttft_s")
        elif kind == "request_end":
            one.update(ended=event.get("ts"), tokens=event.get("total_tokens"), prompt=event.get("prompt_tokens"),
                       error=str(event.get("error") or "")[:300])  # fmt: skip
    return [one for key, one in found.items() if key is not None]


def book_server(text: bytes) -> http.server.ThreadingHTTPServer:
    """Serves the book on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
