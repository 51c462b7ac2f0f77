"""Runs inside the container: what the Python programs of its own command import, and whether they
are older than it.

A program can't be asked without changing it, so each is looked at from outside: the interpreter,
variables, folder and command of /proc start a new interpreter in the same way, and the libraries
that it has mapped are read from its maps.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import time

from envgen.inside.common import Doc, listing, number_in, read_bytes, read_text
from envgen.inside.probe.imports import absolute, answer_to, base_path, without_own_finder
from envgen.inside.probe.origins import home_of, origins

OURS = b"# envgen-inside"
OWN_FOLDER = "/opt/envgen/"  # scripts of the image: the entry point, compile-gate, memory-guard
WITH_VALUE = "WXcm"  # options of Python that take a value
KEPT = "EIPsS"  # those that change sys.path
MOST = 200  # processes
FILES = 20_000  # of one package
CODE_LIMIT = 1 << 20
CHILD_LIMIT = 4.0  # seconds, for one interpreter
SPARE = 3.0  # seconds of the whole time that are left for the answer


# --- processes
# --------------------------------------------------------------------------------------------------------


def pids() -> list[int]:
    return sorted(int(name) for name in listing("/proc") if name.isdigit())


def stat_of(pid: int) -> tuple[str, int, float]:
    """(state, parent, start in clock ticks since the machine's) of a process; ("", 0, 0) if it is
    gone.
    """
    _, _, rest = read_text(f"/proc/{pid}/stat", 2000).rpartition(")")
    words = rest.split()
    if len(words) < 20:
        return "", 0, 0.0
    return words[0], int(words[1]), float(words[19])


def clock() -> tuple[float, float]:
    """(time of the machine's start, ticks per second)."""
    begin = number_in("/proc/stat", "btime") or time.time()
    return begin, float(os.sysconf("SC_CLK_TCK"))


def link(pid: int, name: str) -> str | None:
    """The target of a link in a process's folder; None if this user may not read it."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None


def words_of(pid: int) -> list[str]:
    """The command line. A program that sets its title (`VLLM::EngineCore`) has one word."""
    text = read_bytes(f"/proc/{pid}/cmdline", CODE_LIMIT).decode("utf-8", "surrogateescape")
    return text.rstrip("\0").split("\0") if text else []


def variables_of(pid: int) -> dict[str, str]:
    text = read_bytes(f"/proc/{pid}/environ", CODE_LIMIT).decode("utf-8", "surrogateescape")
    pairs = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, equals, value in pairs if equals and name}


def launch_of(words: list[str]) -> Doc | None:
    """How a command line starts Python: ``how`` (-c, -m, script), its target and flags. None for
    another command.
    """
    if not words or not re.match(r"python[0-9.]*$", os.path.basename(words[0])):
        return None
    flags = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            continue
        for place, letter in enumerate(word[1:], 1):
            if letter in KEPT:
                flags.append(f"-{letter}")
            if letter in WITH_VALUE:
                value = word[place + 1 :] or (rest.pop(0) if rest else "")
                if letter in "cm":
                    return {"how": f"-{letter}", "target": value, "flags": flags}
                break
    target = rest[0] if rest and rest[0] != "-" else ""
    return {"how": "script" if target else "stdin", "target": target, "flags": flags}


def own_entry(launch: Doc, folder: str) -> list[str]:
    """What this way of starting puts in front of sys.path."""
    if launch["how"] == "script":
        path = os.path.realpath(absolute(launch["target"], folder))
        return [path if os.path.isdir(path) else os.path.dirname(path)]
    return [folder] if launch["how"] == "-m" else [""]


def shown(launch: Doc) -> str:
    """The start in words, without arguments, which may hold a secret."""
    if launch["how"] == "script":
        return f"python3 {launch['target']}"
    return {"-m": f"python3 -m {launch['target']}", "-c": "python3 -c ..."}.get(
        str(launch["how"]), "python3"
    )


# --- what it has mapped
# -----------------------------------------------------------------------------------------------


def package_folder(path: str, package: str) -> str:
    """The folder of the package that a mapped file belongs to; "" for a file of another (a cache of
    that name).
    """
    folder = os.path.dirname(path)
    while len(folder) > 1:
        if os.path.basename(folder) == package and os.path.isfile(f"{folder}/__init__.py"):
            return folder
        folder = os.path.dirname(folder)
    return ""


def mapped(pid: int, packages: list[str]) -> list[Doc]:
    """The packages' libraries that a process has mapped, the last changed of each folder; ``gone``:
    replaced since.
    """
    libraries: dict[tuple[str, str, bool], tuple[float, str]] = {}
    for line in read_text(f"/proc/{pid}/maps", 16 << 20).splitlines():
        _, slash, path = line.partition("/")
        path = slash + path
        gone = path.endswith(" (deleted)")
        if gone:
            path = path[: -len(" (deleted)")]
        if ".so" not in os.path.basename(path):
            continue
        for package in packages:
            folder = package_folder(path, package)
            if folder:
                found = (0.0 if gone else ctime(path), path)
                key = (package, folder, gone)
                libraries[key] = max(libraries.get(key, found), found)
    facts = []
    for (package, folder, gone), (changed, file) in libraries.items():
        facts.append(
            {"package": package, "folder": folder, "gone": gone, "file": file, "changed": changed}
        )
    return facts


def ctime(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


def has_import(code: bytes, package: str) -> bool:
    """Whether the code has the package in an `import`."""
    return bool(
        re.search(
            rb"\b(?:import|from)\s+(?:[\w.]+\s*,\s*)*" + re.escape(package.encode()) + rb"\b", code
        )
    )


def named(launch: Doc, folder: str, packages: list[str]) -> list[str]:
    """The packages that a program is, or that its code imports."""
    target = launch["target"]
    code = target.encode("utf-8", "replace")
    if launch["how"] == "-m":
        code = b"import " + code
    elif launch["how"] == "script":
        code = read_bytes(absolute(target, folder), CODE_LIMIT)
    return [package for package in packages if has_import(code, package)]


# --- one interpreter, started as the program was
# ----------------------------------------------------------------------


def as_started(request: Doc) -> Doc:
    """In the new interpreter: what each package is."""
    without_own_finder()
    launch = request["launch"]
    folder = request["folder"]
    base = base_path()
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    first = [] if is_safe else own_entry(launch, folder)
    sys.path[:] = first + base
    cells = []
    for package in request["packages"]:
        way = (shown(launch), lambda: list(first))
        cells.append(answer_to((package["package"], way, folder), base))
    return {"cells": cells, "origins": origins(request, {"python": {"path": base}})}


def ask(
    launch: Doc, words: list[str], exe: str, folder: str, env: Doc, request: Doc
) -> tuple[Doc, str]:
    """(answer, reason of none) of an interpreter that is started as the program was."""
    asked = {"as_started": {"launch": launch, "folder": folder, "packages": request["packages"]}}
    envelope = dict(sys.modules["__main__"].ENVELOPE, request=asked, seconds=CHILD_LIMIT)
    argv = [words[0], *launch["flags"], "-c", envelope["starter"]]
    # The name decides which virtual environment it is, the executable is that of the process.
    own = {
        name: value for name, value in env.items() if name not in ("PYTHONINSPECT", "PYTHONSTARTUP")
    }
    try:
        done = subprocess.run(
            argv,
            executable=exe,
            cwd=folder,
            env=own,
            timeout=CHILD_LIMIT,
            input=json.dumps(envelope).encode() + b"\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        document = json.loads(
            done.stdout.decode("utf-8", "replace").rpartition(envelope["mark"])[2]
        )
        return document["answer"], ""
    except subprocess.TimeoutExpired:
        return {}, f"took longer than {CHILD_LIMIT:.0f} s"
    except (OSError, ValueError, KeyError) as error:
        return {}, f"{type(error).__name__}: {str(error)[:200]}"


# --- how old it is
# ----------------------------------------------------------------------------------------------------


def changed_at(path: str, status: os.stat_result) -> float:
    """When a Python file changed: by the time of the file system, since an edit may keep an old one
    (rsync -a, tar).

    That is also the time of another owner or mode, which counts for nothing: then the file still
    has the time and size with which Python compiled it before.
    """
    cache = importlib.util.cache_from_source(path)
    compiled = struct.pack("<II", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    is_same = read_bytes(cache, 16)[8:] == compiled and ctime(cache) <= status.st_ctime
    return min(status.st_mtime, status.st_ctime) if is_same else status.st_ctime


def newest(folder: str) -> tuple[float, str]:
    """(time, path) of the last change of a Python file below a package's folder."""
    best = (0.0, "")
    left = FILES
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            # envgen-install writes the two, also while another service runs.
            if not name.endswith(".py") or name in ("_version.py", "_build_meta.py"):
                continue
            left -= 1
            path = f"{top}/{name}"
            try:
                status = os.stat(path)
            except OSError:
                continue
            if status.st_ctime > best[0]:
                best = max(best, (changed_at(path, status), path))
        if left < 0:
            break
    return best


# --- the document
# -----------------------------------------------------------------------------------------------------


def ours(all_pids: list[int]) -> set[int]:
    """This program, what started it, and what it starts."""
    marked = {pid for pid in all_pids if OURS in read_bytes(f"/proc/{pid}/cmdline", CODE_LIMIT)}
    return marked | {os.getpid()}


def examine(request: Doc, until: float) -> Doc:
    """The Python programs that the container's own command started."""
    packages = [package["package"] for package in request["packages"]]
    all_pids = pids()
    facts = {pid: stat_of(pid) for pid in all_pids}
    skipped = ours(all_pids)
    boot, ticks = clock()
    answers = {}
    processes = []
    for pid in all_pids[:MOST]:
        state, _, started = facts[pid]
        top = pid
        while top in facts and facts[top][1] > 0:
            top = facts[top][1]
        exe = link(pid, "exe") or ""
        is_python = re.match(r"python[0-9.]*( \(deleted\))?$", os.path.basename(exe))
        # What `docker exec` started has an ancestor of its own.
        if state in ("", "Z") or pid in skipped or top != 1 or not is_python:
            continue
        words = words_of(pid)
        launch = launch_of(words)
        folder = link(pid, "cwd") or "/"
        if launch and absolute(launch["target"], folder).startswith(OWN_FOLDER):
            continue
        fact = {
            "pid": pid,
            "started": boot + started / ticks,
            "title": shown(launch) if launch else words[0][:60] if words else exe,
            "mapped": mapped(pid, packages),
        }
        if launch is not None:
            env = variables_of(pid)
            key = json.dumps([launch, exe, words[0], folder, sorted(env.items())])
            if key not in answers:
                late = time.monotonic() > until
                answers[key] = (
                    ({}, "no time left") if late else ask(launch, words, exe, folder, env, request)
                )
            answer, why = answers[key]
            fact.update(answer, error=why, named=named(launch, folder, packages))
            fact["python_path"] = env.get("PYTHONPATH", "")
        processes.append(fact)
    return {"processes": processes}


def ages(request: Doc, document: Doc) -> list[Doc]:
    """The newest file of each package's folder in question."""
    folders = {}
    for package in request["packages"]:
        home = home_of(package)
        if home.endswith("/__init__.py"):
            folders[os.path.dirname(home)] = package["package"]
    for process in document["processes"]:
        for origin in process.get("origins", []):
            for one in origin["recorded"]:
                folder, name = os.path.split(one["file"])
                if name == "__init__.py":
                    folders.setdefault(folder, origin["package"])
    facts = []
    for folder, package in folders.items():
        when, path = newest(folder)
        facts.append({"package": package, "folder": folder, "file": path, "changed": when})
    return facts


def answer(request: Doc) -> Doc:
    """The Python programs; in an interpreter that it started itself, that one's answer."""
    if "as_started" in request:
        return as_started(request["as_started"])
    document = examine(request, time.monotonic() + request["seconds"] - SPARE)
    homes = [
        {"package": package["package"], "home": home_of(package)} for package in request["packages"]
    ]
    document.update(origins=homes, ages=ages(request, document))
    return document
