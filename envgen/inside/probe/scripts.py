"""Runs INSIDE the container: console scripts and the interpreters they start."""

from __future__ import annotations

import json
import os
import shutil
import sys

from envgen.inside.probe.basics import Doc, call

OTHER_LIMIT = 4.0  # seconds, for the interpreter of one script


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
        words[:1] = [shutil.which(words[0]) or words[0]] if words else []
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
            path = shutil.which(name)
            if path is None:
                found.append({"name": name, "package": package["package"], "path": None})
                continue
            program, flags = interpreter_of(path)
            same = program is not None and same_interpreter(program) and all(flag == "-P" for flag in flags)
            found.append({"name": name, "package": package["package"], "path": path, "real": os.path.realpath(path),
                          "interpreter": program, "flags": flags, "same": same})  # fmt: skip
    return found


def ask_other(script: Doc, request: Doc, errors: list[Doc]) -> list[Doc]:
    """A console script of another interpreter: start that one with our own program, and only this script's cells."""
    asked = dict(request, only=[script["name"]], script=dict(script, mine=True))
    envelope = dict(sys.modules["__main__"].ENVELOPE, request=asked, seconds=OTHER_LIMIT)
    argv = [script["interpreter"], *script["flags"], "-c", envelope["starter"]]
    said, why = call(argv, OTHER_LIMIT, input=json.dumps(envelope).encode() + b"\n")
    try:
        document = json.loads(said.rpartition(envelope["mark"])[2])
        found: Doc = document["answer"]
        errors.extend(found["errors"])
        script["version"] = found["python"]["version"].split()[0]
        answers: list[Doc] = found["imports"]
        return answers
    except Exception as error:
        why = why or "%s: %s" % (type(error).__name__, str(error)[:200])
        message = "%s, which starts %s, can't be asked: %s" % (script["interpreter"], script["name"], why)
        errors.append({"part": "scripts", "error": message})
        return []
