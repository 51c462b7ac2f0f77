"""Runs inside the container: reads a program and a request from stdin, writes one marked JSON
document to stdout.

Output of the program and of packages that it imports goes to stderr, away from the document. A
program that takes too long ends with its stack.
"""

from __future__ import annotations

import _thread
import faulthandler
import importlib
import json
import os
import sys
import traceback
from typing import Any, Dict

Doc = Dict[str, Any]


class ProgramFiles:
    """Imports the program's files by name, each on first use."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.packages = {
            name[:dot] for name in files for dot, letter in enumerate(name) if letter == "."
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self.files and name not in self.packages:
            return None
        return type(sys.__spec__)(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = f"<{module.__name__}>"
        exec(
            compile(self.files.get(module.__name__, ""), name, "exec", dont_inherit=True),
            module.__dict__,
        )


def watch() -> None:
    """End at the end of stdin, which means that envgen was killed: the next envgen must not find
    this one at work. It finishes what is half done.
    """
    while os.read(0, 4096):
        pass
    os._exit(1)


def bounded(document: Doc, limit: int) -> bytes:
    """The document as bytes, or an error where it is too long."""
    data = json.dumps(document, default=str).encode("utf-8", "replace")
    if len(data) > limit:
        short = {
            "error": "TooLong",
            "message": f"the answer has {len(data)} bytes, {limit} are allowed",
        }
        data = json.dumps(short).encode()
    return data


def main(envelope: Doc) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    faulthandler.dump_traceback_later(float(envelope["seconds"]), exit=True)
    try:
        sys.meta_path.insert(0, ProgramFiles(envelope["files"]))
        if envelope["watch"]:
            _thread.start_new_thread(watch, ())
        document = {
            "answer": importlib.import_module(envelope["entry"]).answer(envelope["request"])
        }
    except BaseException as problem:  # an import may raise anything, SystemExit included
        stack = traceback.format_exc().splitlines()[-12:]
        document = {"error": type(problem).__name__, "message": str(problem)[:4000], "stack": stack}
    data = f"\n{envelope['mark']} ".encode() + bounded(document, int(envelope["bytes"])) + b"\n"
    while data:
        data = data[os.write(answers, data) :]
    sys.stderr.flush()
    os._exit(0)  # without atexit handlers and threads of packages, which may hang


main(globals()["ENVELOPE"])
