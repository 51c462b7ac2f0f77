"""Runs llama-benchy inside a serving container. Text that runs in the container's own Python: standard library only.

Reads one JSON document from stdin: ``base_url``, ``model``, ``tokenizer``, ``pp``, ``tg``, ``concurrency``, ``runs``,
``latency_mode``, ``book`` (the text that prompts are cut from). Prints one: ``report`` (llama-benchy's own JSON), or
``missing`` (it is not installed), or ``failed`` (its exit code and its last lines). The book is served to it on
loopback, because it would otherwise download one; what it writes goes into a folder that is removed.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Any


def arguments(asked: dict[str, Any], book_url: str, target: str) -> list[str]:
    """The words of the command."""

    def many(values: list[int]) -> list[str]:
        return [str(value) for value in values]

    words = [sys.executable, "-m", "llama_benchy", "--base-url", asked["base_url"], "--model", asked["model"]]
    words += ["--served-model-name", asked["model"], "--tokenizer", asked["tokenizer"]]
    words += ["--pp"] + many(asked["pp"]) + ["--tg"] + many(asked["tg"])
    words += ["--concurrency"] + many(asked["concurrency"]) + ["--runs", str(asked["runs"])]
    words += ["--latency-mode", asked["latency_mode"], "--book-url", book_url]
    return words + ["--save-result", target, "--format", "json"]


def book_server(text: bytes) -> http.server.ThreadingHTTPServer:
    """Serves the book on loopback; returns the server."""

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


def measure(asked: dict[str, Any], folder: str) -> dict[str, Any]:
    """Run it and read what it saved."""
    server = book_server(asked["book"].encode("utf-8"))
    target = os.path.join(folder, "report.json")
    words = arguments(asked, "http://127.0.0.1:%d/book.txt" % server.server_address[1], target)
    env = dict(os.environ, HOME=folder, NO_PROXY="127.0.0.1,localhost", no_proxy="127.0.0.1,localhost")
    known = subprocess.run(
        words[:3] + ["--help"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout.decode("utf-8", "replace")
    # Newer versions can hold the length of a completion, leave out a test that a model of no sense can't pass.
    words += [flag for flag in ("--exact-tg", "--skip-coherence", "--no-cache") if flag in known]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode("utf-8", "replace")
    server.shutdown()
    if done.returncode or not os.path.exists(target):
        return {"failed": {"code": done.returncode, "lines": said.splitlines()[-15:]}}
    with open(target, encoding="utf-8") as file:
        return {"report": json.load(file), "lines": said.splitlines()[-15:]}


def main() -> None:
    asked = json.load(sys.stdin)
    if importlib.util.find_spec("llama_benchy") is None:
        print(json.dumps({"missing": True}))
        return
    folder = tempfile.mkdtemp(prefix="envgen-benchy-")
    try:
        print(json.dumps(measure(asked, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
