"""Runs inside the container: what the Python programs that run there import, and whether they are
older than it.

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
from typing import Any, Dict, Iterator, List, Optional, Tuple

from envgen.inside.common import listing, read_bytes, read_text
from envgen.inside.probe.imports import absolute, answer_to, base_path, without_own_finder
from envgen.inside.probe.origins import home_of, origins

Doc = Dict[str, Any]

OURS = b"# envgen-inside"
OWN_FOLDER = "/opt/envgen/"  # scripts of the image: the entry point, compile-gate, memory-guard
WITH_VALUE = "WXcm"  # options of Python that take a value
KEPT = "EIPsS"  # those that change sys.path
VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSAFEPATH",
    "BASH_ENV",
    "VIRTUAL_ENV",
)  # harmless to report
MOST = 200  # processes
FILES = 20_000  # of one package
CODE_LIMIT = 1 << 20
CHILD_LIMIT = 4.0  # seconds, for one interpreter
SPARE = 3.0  # seconds of the whole time that are left for the answer


# --- processes
# --------------------------------------------------------------------------------------------------------


def pids() -> list[int]:
    return sorted(int(name) for name in listing("/proc") if name.isdigit())


def stat_of(pid: int) -> Tuple[str, int, float]:
    """(state, parent, start in clock ticks since the machine's) of a process; ("", 0, 0) if it is
    gone.
    """
    words = read_text("/proc/%d/stat" % pid, 2000).rpartition(")")[2].split()
    return (words[0], int(words[1]), float(words[19])) if len(words) > 19 else ("", 0, 0.0)


def clock() -> Tuple[float, float]:
    """(time of the machine's start, ticks per second)."""
    line = re.search(r"^btime (\d+)", read_text("/proc/stat", CODE_LIMIT), re.MULTILINE)
    return float(line[1]) if line else time.time(), float(os.sysconf("SC_CLK_TCK"))


def link(pid: int, name: str) -> Optional[str]:
    """The target of a link in a process's folder; None if this user may not read it."""
    try:
        return os.readlink("/proc/%d/%s" % (pid, name))
    except OSError:
        return None


def words_of(pid: int) -> list[str]:
    """The command line. A program that sets its title (`VLLM::EngineCore`) has one word."""
    text = read_bytes("/proc/%d/cmdline" % pid, CODE_LIMIT).decode("utf-8", "surrogateescape")
    return text.rstrip("\0").split("\0") if text else []


def variables_of(pid: int) -> dict[str, str]:
    text = read_bytes("/proc/%d/environ" % pid, CODE_LIMIT).decode("utf-8", "surrogateescape")
    pairs = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, equals, value in pairs if equals and name}


def launch_of(words: list[str]) -> Optional[Doc]:
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
                flags.append("-" + letter)
            if letter in WITH_VALUE:
                value = word[place + 1 :] or (rest.pop(0) if rest else "")
                if letter in "cm":
                    return {"how": "-" + letter, "target": value, "flags": flags}
                break
    target = rest[0] if rest and rest[0] != "-" else ""
    return {"how": "script" if target else "stdin", "target": target, "flags": flags}


def own_entry(launch: Doc, folder: str) -> list[str]:
    """What this way of starting puts in front of sys.path."""
    if launch["how"] == "script":
        path = os.path.realpath(absolute(launch["target"], folder))
        return [path if os.path.isdir(path) else os.path.dirname(path)]
    return [folder] if launch["how"] == "-m" else [""]


def target_of(launch: Doc) -> str:
    """The script or module; not the text of `-c`, which may hold a secret."""
    return "" if launch["how"] == "-c" else str(launch["target"])


def shown(launch: Doc) -> str:
    """The start in words, without arguments, which may hold a secret."""
    if launch["how"] == "script":
        return "python3 %s" % launch["target"]
    return {"-m": "python3 -m %s" % launch["target"], "-c": "python3 -c ..."}.get(
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
        if os.path.basename(folder) == package and os.path.isfile(folder + "/__init__.py"):
            return folder
        folder = os.path.dirname(folder)
    return ""


def mapped(pid: int, packages: list[str]) -> list[Doc]:
    """The packages' libraries that a process has mapped, the last changed of each folder; ``gone``:
    replaced since.
    """
    libraries: Dict[Tuple[str, str, bool], Tuple[float, str]] = {}
    for line in read_text("/proc/%d/maps" % pid, 16 << 20).splitlines():
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


# --- what a program does to sys.path itself
# ---------------------------------------------------------------------------

# By its text; nothing is evaluated. What is put at the end hides no other file, and is not looked
# at.
EDIT = re.compile(
    rb"""\bsys\.path\.insert\(\s*[01]\s*,\s*(?:(['"])([^'"\\\n]{1,4096})\1\s*\))?|\bsys\.path(?:\[[^\]\n]*\])?\s*=(?!=)"""
)
RUNS = re.compile(rb"""\b(?:open|run_path)\(\s*['"]([^'"\n]{1,4096}\.py)['"]""")


def texts(code: bytes, file: str, folder: str) -> list[Tuple[bytes, str]]:
    """A program's code and file, and those of the files that it names to execute them."""
    others = (absolute(os.fsdecode(name), folder) for name in RUNS.findall(code)[:20])
    return [(code, file), *((read_bytes(other, CODE_LIMIT), other) for other in others)]


def changes(code: bytes, file: str, folder: str) -> Iterator[Doc]:
    """What the code puts in front of sys.path: `first` with a folder that it names, or `unknown`
    with the line.
    """
    for edit in EDIT.finditer(code):
        entry = absolute(os.fsdecode(edit[2]), folder) if edit[2] else ""
        line = code.count(b"\n", 0, edit.start()) + 1
        yield {"what": "first" if entry else "unknown", "entry": entry, "file": file, "line": line}


def has_import(code: bytes, package: str) -> bool:
    """Whether the code has the package in an `import`."""
    return bool(
        re.search(
            rb"\b(?:import|from)\s+(?:[\w.]+\s*,\s*)*" + re.escape(package.encode()) + rb"\b", code
        )
    )


def code_of(launch: Doc, folder: str) -> Tuple[bytes, str]:
    """(the program's code, its file); empty for a module of a package, which is not looked for."""
    how = launch["how"]
    target = launch["target"]
    if how == "-c":
        return target.encode("utf-8", "replace"), ""
    files = []
    if how == "-m" and "." not in target:
        for entry in sys.path:
            place = os.path.join(entry or folder, target)
            files += [place + ".py", os.path.join(place, "__main__.py")]
    elif how == "script":
        path = absolute(target, folder)
        files.append(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)
    for file in files:
        if os.path.isfile(file):
            data = read_bytes(file, CODE_LIMIT)
            return (b"", "") if b"\0" in data[:1000] else (data, file)
    return b"", ""


# --- one interpreter, started as the program was
# ----------------------------------------------------------------------


def as_started(request: Doc) -> Doc:
    """In the new interpreter: what each package is, with what the program itself puts on sys.path."""
    without_own_finder()
    launch = request["launch"]
    folder = request["folder"]
    base = base_path()
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    first = [] if is_safe else own_entry(launch, folder)
    sys.path[:] = first + base
    code = texts(*code_of(launch, folder), folder)
    done: list[Doc] = []
    for text, file in code:
        done += changes(text, file, folder)
    for change in done:
        if change["what"] == "first":
            first.insert(0, change["entry"])
    started = launch["target"].split(".")[0] if launch["how"] == "-m" else ""
    cells = []
    named = []
    for package in request["packages"]:
        name = package["package"]
        way = (shown(launch), lambda: list(first))
        cells.append(answer_to((name, way, folder), base, lambda _finder: None))
        if name == started or any(has_import(text, name) for text, _ in code):
            named.append(name)
    owners = origins(request, {"python": {"path": base}})
    return {"cells": cells, "changes": done, "origins": owners, "named": named}


def ask(
    launch: Doc, words: list[str], exe: str, folder: str, env: Doc, request: Doc
) -> Tuple[Doc, str]:
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
        return {}, "took longer than %d s" % CHILD_LIMIT
    except (OSError, ValueError, KeyError) as error:
        return {}, "%s: %s" % (type(error).__name__, str(error)[:200])


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


def newest(folder: str) -> Tuple[float, str, bool]:
    """(time, path, whether it was deleted) of the last change of a Python file below a package's
    folder.
    """
    best = (0.0, "", False)
    left = FILES
    end = ".%s.pyc" % sys.implementation.cache_tag
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        # A deleted module leaves its compiled file, and its folder has the time.
        there = {name.rpartition(".")[0] for name in names}
        left_over = sorted(
            name[: -len(end)] for name in listing(top + "/__pycache__") if name.endswith(end)
        )
        for name in left_over:
            if name not in there and name not in folders and os.stat(top).st_mtime > best[0]:
                best = (os.stat(top).st_mtime, os.path.join(top, name + ".py"), True)
        # envgen-install writes the two, also while another service runs.
        own = (
            name
            for name in names
            if name.endswith(".py") and name not in ("_version.py", "_build_meta.py")
        )
        for path in (os.path.join(top, name) for name in own):
            left -= 1
            try:
                status = os.stat(path)
            except OSError:
                continue
            if status.st_ctime > best[0]:
                best = max(best, (changed_at(path, status), path, False))
        if left < 0:
            break
    return best


# --- the document
# -----------------------------------------------------------------------------------------------------


def ours(all_pids: list[int], parents: Dict[int, int]) -> set[int]:
    """This program, what started it, and what it starts."""
    own = {os.getpid()}
    pid = parents.get(os.getpid(), 0)
    while pid > 1 and OURS in read_bytes("/proc/%d/cmdline" % pid, CODE_LIMIT):
        own.add(pid)
        pid = parents.get(pid, 0)
    return own | {
        pid for pid in all_pids if OURS in read_bytes("/proc/%d/cmdline" % pid, CODE_LIMIT)
    }


def examine(request: Doc, until: float) -> Doc:
    """Every Python program of the container."""
    packages = [package["package"] for package in request["packages"]]
    all_pids = pids()
    facts = {pid: stat_of(pid) for pid in all_pids}
    skipped = ours(all_pids, {pid: parent for pid, (_, parent, _) in facts.items()})
    boot, ticks = clock()
    answers: Dict[str, Tuple[Doc, str]] = {}
    processes: List[Doc] = []
    hidden = 0
    for pid in all_pids[:MOST]:
        state, _, started = facts[pid]
        if state in ("", "Z") or pid in skipped:
            continue
        exe = link(pid, "exe")
        words = words_of(pid)
        if exe is None:
            hidden += any(
                word in " ".join(words[:2]) for word in ("python", "vllm")
            )  # of another user
            continue
        if not re.match(r"python[0-9.]*( \(deleted\))?$", os.path.basename(exe)):
            continue
        launch = launch_of(words)
        folder = link(pid, "cwd") or "/"
        env = variables_of(pid)
        if (
            launch
            and launch["how"] == "script"
            and absolute(launch["target"], folder).startswith(OWN_FOLDER)
        ):
            continue
        top = pid
        while top in facts and facts[top][1] > 0:
            top = facts[top][1]
        fact: Doc = {
            "pid": pid,
            "top": top,
            "started": boot + started / ticks,
            "folder": folder,
            "title": shown(launch) if launch else words[0][:60] if words else exe,
            "executable": exe,
            "mapped": mapped(pid, packages),
        }
        fact["variables"] = {name: env[name] for name in VARIABLES if name in env}
        if launch is not None:
            key = json.dumps([launch, exe, words[0], folder, sorted(env.items())])
            if key not in answers:
                late = time.monotonic() > until
                answers[key] = (
                    ({}, "no time left") if late else ask(launch, words, exe, folder, env, request)
                )
            answer, why = answers[key]
            fact.update(
                {name: answer.get(name, []) for name in ("cells", "changes", "origins", "named")},
                error=why,
            )
            fact.update(how=launch["how"], target=target_of(launch))
        processes.append(fact)
    return {"processes": processes, "hidden": hidden}


def ages(request: Doc, document: Doc) -> list[Doc]:
    """The newest file of each package's folder in question."""
    folders: Dict[str, str] = {}
    for package in request["packages"]:
        home = home_of(package)
        if home.endswith("/__init__.py"):
            folders[os.path.dirname(home)] = package["package"]
    for process in document["processes"]:
        for package, one in (
            (it["package"], one) for it in process.get("origins", []) for one in it["recorded"]
        ):
            if one["file"].endswith("/__init__.py"):
                folders.setdefault(os.path.dirname(one["file"]), package)
    facts = []
    for folder, package in folders.items():
        when, path, gone = newest(folder)
        facts.append(
            {"package": package, "folder": folder, "file": path, "changed": when, "gone": gone}
        )
    return facts


def answer(request: Doc) -> Doc:
    """All Python programs; in an interpreter that it started itself, that one's answer."""
    if "as_started" in request:
        return as_started(request["as_started"])
    document = examine(request, time.monotonic() + request["seconds"] - SPARE)
    homes = [
        {"package": package["package"], "home": home_of(package)} for package in request["packages"]
    ]
    document.update(origins=homes, ages=ages(request, document))
    return document
