"""Runs INSIDE the container, before main.py, in the same namespace: console scripts and the interpreters they start.

The same rules: Python 3.8 and later, standard library only, evidence and no judgement.
"""

# os.path instead of pathlib, and typing only for the type checker: importing both would cost every probe 8 ms.

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Dict

    Doc = Dict[str, Any]

OTHER_LIMIT = 4.0  # seconds, for the interpreter of one script


def which(name: str) -> str | None:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def interpreter_of(script: str) -> tuple[str | None, list[str]]:
    """(program, flags) that the first lines of a script start; (None, []) for a binary or another language."""
    with open(script, "rb") as file:
        head = file.read(1024).decode("utf-8", "surrogateescape")
    if not head.startswith("#!"):
        return None, []
    lines = head[2:].splitlines() + [""]
    words = lines[0].split()
    if words and os.path.basename(words[0]) == "sh" and "exec" in lines[1]:
        # pip's form for long paths: #!/bin/sh, then '''exec' "/path/python" "$0" "$@"
        words = lines[1].split("exec'", 1)[-1].replace('"$0"', "").replace('"$@"', "").strip().strip("'").split('"')
        words = words[1:2] or words[0].split()[:1]
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
        words[:1] = [which(words[0]) or words[0]] if words else []
    if not words or "python" not in os.path.basename(words[0]):
        return None, []
    return words[0], words[1:]


def same_interpreter(program: str) -> bool:
    """Same file in the same folder: a virtual environment's python is a link to its base's, and not the same."""
    mine = sys.executable or ""
    folders = [os.path.realpath(os.path.dirname(os.path.abspath(p))) for p in (program, mine)]
    return folders[0] == folders[1] and os.path.realpath(program) == os.path.realpath(mine)


def scripts_of(request: Doc) -> list[Doc]:
    """Facts of every console script that the request names."""
    found = []
    for package in request.get("packages", []):
        for name in package.get("scripts", []):
            path = which(name)
            if path is None:
                found.append({"name": name, "package": package["package"], "path": None})
                continue
            program, flags = interpreter_of(path)
            same = program is not None and same_interpreter(program) and all(flag == "-P" for flag in flags)
            found.append({"name": name, "package": package["package"], "path": path, "real": os.path.realpath(path),
                          "interpreter": program, "flags": flags, "same": same})  # fmt: skip
    return found


def start(argv: list[str]) -> tuple[int, int, int]:
    """Start a program with pipes: (process, its stdin, its stdout). Importing subprocess would cost 8 ms."""
    stdin, feed = os.pipe()
    result, stdout = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.closerange(3, 64)
            os.execv(argv[0], argv)
        finally:
            os._exit(127)
    os.close(stdin)
    os.close(stdout)
    return pid, feed, result


def ask_other(
    script: Doc, request: Doc, errors: list[Doc], drain: Callable[[int, float], tuple[bytes, bool]]
) -> list[Doc]:
    """A console script of another interpreter: start that one, with these same texts and only this script's cells."""
    asked = dict(request, only=[script["name"]], script=dict(script, mine=True))
    data, late = b"", False
    try:
        pid, feed, result = start([script["interpreter"]] + script["flags"] + ["-", json.dumps(asked)])
        with os.fdopen(feed, "wb") as file:
            file.write(("PARTS = %r\n%s" % (globals()["PARTS"], globals()["LOADER"])).encode())
        data, late = drain(result, OTHER_LIMIT)
        if late:
            os.kill(pid, 9)
        os.close(result)
        os.waitpid(pid, 0)
        found: Doc = json.loads(data.decode("utf-8", "replace").strip().splitlines()[-1])
        errors.extend(found["errors"])
        script["version"] = found["python"]["version"].split()[0]
        answers: list[Doc] = found["imports"]
        return answers
    except Exception as error:
        why = "took too long" if late else "%s: %s" % (type(error).__name__, str(error)[:200])
        message = "%s, which starts %s, can't be asked: %s" % (script["interpreter"], script["name"], why)
        errors.append({"part": "scripts", "error": message})
        return []
