"""Runs inside the container: takes a program and a request from stdin, writes one marked JSON document on stdout.

What the program and the packages that it imports print goes to stderr, so that it can't spoil the document. A program
that takes too long ends with a stack of where it was, not in silence.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Doc = Dict[str, Any]


def modules(files: Dict[str, str]) -> None:
    """Make a module of each text, in their order: later ones may import earlier ones by name."""
    for name, text in files.items():
        module = sys.modules[name] = type(sys)(name)
        module.__dict__["__file__"] = "<%s>" % name
        exec(compile(text, "<%s>" % name, "exec", dont_inherit=True), module.__dict__)


def bounded(document: Doc, limit: int) -> bytes:
    """The document as bytes; one that is too long is replaced by what says so."""
    data = json.dumps(document, default=str).encode("utf-8", "replace")
    if len(data) > limit:
        short = {"error": "TooLong", "message": "the answer has %d bytes, %d are allowed" % (len(data), limit)}
        data = json.dumps(short).encode()
    return data


def main(envelope: Doc) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    faulthandler.dump_traceback_later(float(envelope["seconds"]), exit=True)
    try:
        modules(envelope["files"])
        document = {"answer": sys.modules[envelope["entry"]].answer(envelope["request"])}
    except BaseException as problem:  # an import may raise anything, SystemExit included
        stack = traceback.format_exc().splitlines()[-12:]
        document = {"error": type(problem).__name__, "message": str(problem)[:4000], "stack": stack}
    data = ("\n%s " % envelope["mark"]).encode() + bounded(document, int(envelope["bytes"])) + b"\n"
    while data:
        data = data[os.write(answers, data) :]
    sys.stderr.flush()
    os._exit(0)  # no atexit handler or thread of a package may hang


main(globals()["ENVELOPE"])
