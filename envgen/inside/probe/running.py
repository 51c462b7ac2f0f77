"""Runs inside the container: what the Python programs that run there import, and whether they are older than it.

A program can't be asked without changing it, so each is looked at from outside: the interpreter, variables, folder and
command of /proc start a new interpreter in the same way, and the libraries that it has mapped are read from its maps.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from envgen.inside.common import listing, read_bytes, read_text
from envgen.inside.probe.imports import absolute, answer_to, base_path
from envgen.inside.probe.origins import home_of, recorded

Doc = Dict[str, Any]

OURS = b"# envgen-inside"
OWN_FOLDER = "/opt/envgen/"  # scripts of the image: the entry point, compile-gate, memory-guard
WITH_VALUE = "WXcm"  # options of Python that take a value
KEPT = "EIPsS"  # those that change sys.path
VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "BASH_ENV", "VIRTUAL_ENV")  # harmless to report
MOST = 200  # processes
FILES = 20_000  # of one package
CODE_LIMIT = 1 << 20
LONGEST = 1 << 16  # characters of a path that code puts together
CHILD_LIMIT = 4.0  # seconds, for one interpreter
SPARE = 3.0  # seconds of the whole time that are left for the answer


# --- processes --------------------------------------------------------------------------------------------------------


def pids() -> list[int]:
    return sorted(int(name) for name in listing("/proc") if name.isdigit())


def stat_of(pid: int) -> Tuple[str, int, float]:
    """(state, parent, start in clock ticks since the machine's) of a process; ("", 0, 0) if it is gone."""
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
    """How a command line starts Python: ``how`` (-c, -m, script), its target and flags. None for another command."""
    if not words or not re.match(r"python[0-9.]*$", os.path.basename(words[0])):
        return None
    flags, rest = [], list(words[1:])
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
    return {"-m": "python3 -m %s" % launch["target"], "-c": "python3 -c ..."}.get(str(launch["how"]), "python3")


# --- what it has mapped -----------------------------------------------------------------------------------------------


def package_folder(path: str, package: str) -> str:
    """The folder of the package that a mapped file belongs to; "" for a file of another (a cache of that name)."""
    folder = os.path.dirname(path)
    while len(folder) > 1:
        if os.path.basename(folder) == package and os.path.isfile(folder + "/__init__.py"):
            return folder
        folder = os.path.dirname(folder)
    return ""


def mapped(pid: int, packages: list[str]) -> list[Doc]:
    """The packages' libraries that a process has mapped, one of each folder; ``gone``: replaced since."""
    found: Dict[Tuple[str, str, bool], str] = {}
    for line in read_text("/proc/%d/maps" % pid, 16 << 20).splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        gone = path.endswith(" (deleted)")
        path = path[: -len(" (deleted)")] if gone else path
        if ".so" not in os.path.basename(path):
            continue
        for package in packages:
            folder = package_folder(path, package) if "/" + package + "/" in path else ""
            if folder:
                found.setdefault((package, folder, gone), path)
    return [{"package": package, "folder": folder, "gone": gone, "file": file}
            for (package, folder, gone), file in found.items()]  # fmt: skip


# --- what a program does to sys.path itself ---------------------------------------------------------------------------


class Unknown(Exception):
    """A value that can't be read from the code."""


def value_of(node: Any, names: Dict[str, Any], file: str, folder: str) -> Any:
    """The value of an expression of texts and paths. Raises Unknown."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Name) and node.id == "__file__" and file:
        return absolute(file, folder)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        left, right = (value_of(part, names, file, folder) for part in (node.left, node.right))
        if isinstance(left, (str, bytes)) and len(left) + len(right) > LONGEST:  # a loop of `x = x + x` doubles it
            raise Unknown()
        return left + right if isinstance(node.op, ast.Add) else os.path.join(left, right)
    if isinstance(node, ast.Attribute):
        inner = value_of(node.value, names, file, folder)
        if node.attr == "parent" and isinstance(inner, str):
            return os.path.dirname(inner)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
        index: Any = node.slice
        index = getattr(index, "value", index)  # a number; up to Python 3.8 the node of one
        index = getattr(index, "value", index)
        inner = value_of(node.value.value, names, file, folder)
        for _ in range(min(int(index), LONGEST) + 1):
            inner = os.path.dirname(inner)
        return inner
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [value_of(each, names, file, folder) for each in node.args]
        if name in ("str", "Path", "fspath", "expanduser") and len(given) == 1:
            return os.path.expanduser(given[0]) if name == "expanduser" else given[0]
        if name in ("resolve", "absolute", "abspath", "realpath") and isinstance(node.func, ast.Attribute):
            inner = given[0] if given else value_of(node.func.value, names, file, folder)
            return absolute(inner, folder)
        if name == "dirname" and len(given) == 1:
            return os.path.dirname(given[0])
        if name == "join" and given and all(isinstance(each, str) for each in given):
            if sum(map(len, given)) > LONGEST:
                raise Unknown()
            return os.path.join(*given)
        if name in ("getcwd", "cwd"):
            return folder
    raise Unknown()


def is_path(node: Any) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", "") == "sys"


class Reader:
    """Reads what one file does to sys.path, without running it."""

    def __init__(self, code: bytes, file: str, folder: str, depth: int) -> None:
        self.code, self.file, self.folder, self.depth = code, file, folder, depth
        self.names: Dict[str, Any] = {}  # variable -> its value, as far as it is known

    def value(self, node: Any) -> Any:
        return value_of(node, self.names, self.file, self.folder)

    def entry(self, node: Any) -> str:
        found = self.value(node)
        if not isinstance(found, str):
            raise Unknown()
        return absolute(found, self.folder)

    def read(self, node: Any) -> Iterator[Doc]:
        """The changes that one node makes."""
        place = {"file": self.file, "line": getattr(node, "lineno", 0)}
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module and not node.level):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            for name in names:
                yield dict(place, what="import", entry=str(name).split(".")[0])
        try:
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                for what, item in self.assigned(node):
                    yield dict(place, what=what, entry=self.entry(item))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for what, item in self.added(node.func, node.args):
                    yield dict(place, what=what, entry=self.entry(item))
                for other in self.other_files(node.func, node.args):
                    for change in changes(read_bytes(other, CODE_LIMIT), other, self.folder, self.depth + 1):
                        yield change
        except (Unknown, TypeError, ValueError, RecursionError):
            if "sys.path" in (ast.get_source_segment(self.code.decode("utf-8", "replace"), node) or ""):
                yield dict(place, what="unknown", entry="")

    def assigned(self, node: Any) -> Iterator[Tuple[str, Any]]:
        """(`first` or `last`, the entry) of `sys.path = [...] + sys.path` and `sys.path += [...]`."""
        if isinstance(node, ast.AugAssign):
            for item in getattr(node.value, "elts", [node.value]) if is_path(node.target) else ():
                yield "last", item
        elif len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            try:
                self.names[name] = self.value(node.value)
            except (Unknown, TypeError, RecursionError):
                self.names.pop(name, None)
        elif any(is_path(one) or (isinstance(one, ast.Subscript) and is_path(one.value)) for one in node.targets):
            items = node.value.left if isinstance(node.value, ast.BinOp) else node.value
            if not isinstance(items, (ast.List, ast.Tuple)):
                raise Unknown()
            for item in reversed(items.elts):
                yield "first", item

    def added(self, function: ast.Attribute, given: List[Any]) -> Iterator[Tuple[str, Any]]:
        """(`first` or `last`, the entry) of `sys.path.insert`, `append` and `extend`, and of `addsitedir`."""
        method, on_path = function.attr, is_path(function.value)
        if on_path and method == "insert" and len(given) == 2:
            yield "first" if self.value(given[0]) in (0, 1) else "last", given[1]
        elif (on_path and method == "append" and given) or (method == "addsitedir" and given):
            yield "last", given[0]
        elif on_path and method == "extend" and given:
            for item in getattr(given[0], "elts", [given[0]]):
                yield "last", item

    def other_files(self, function: ast.Attribute, given: List[Any]) -> Iterator[str]:
        """The file of `run_path(FILE)` and `open(FILE).read()`, which may be executed."""
        if self.depth >= 3:
            return
        if function.attr == "run_path" and given:
            yield self.entry(given[0])
        opened = function.value
        if function.attr == "read" and isinstance(opened, ast.Call) and getattr(opened.func, "id", "") == "open":
            other = self.entry(opened.args[0]) if opened.args else ""
            if other.endswith(".py"):
                yield other


def changes(code: bytes, file: str, folder: str, depth: int = 0) -> Iterator[Doc]:
    """What code does to sys.path, in its order: `first` or `last`, with the entry; `unknown` with its line; and the
    packages that it names in an `import`.

    Conditions are not followed. Code that it runs from another file (`exec(open(...).read())`) is read, too.
    """
    try:
        tree = ast.parse(code, file or "<-c>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return
    reader = Reader(code, file, folder, depth)
    for node in sorted(ast.walk(tree), key=lambda one: (getattr(one, "lineno", 0), getattr(one, "col_offset", 0))):
        for change in reader.read(node):
            yield change


def code_of(launch: Doc, folder: str) -> Tuple[bytes, str]:
    """(the program's code, its file); empty for a module of a package, which is not looked for."""
    if launch["how"] == "-c":
        return launch["target"].encode("utf-8", "replace"), ""
    if launch["how"] == "-m":
        name = launch["target"]
        places = [entry or folder for entry in sys.path] if "." not in name else []
        files = [os.path.join(place, *end) for place in places for end in ((name + ".py",), (name, "__main__.py"))]
    else:
        path = absolute(launch["target"], folder) if launch["how"] == "script" else ""
        files = [os.path.join(path, "__main__.py") if os.path.isdir(path) else path] if path else []
    file = next((file for file in files if os.path.isfile(file)), "")
    data = read_bytes(file, CODE_LIMIT)
    return (b"", "") if b"\0" in data[:1000] else (data, file)


# --- one interpreter, started as the program was ----------------------------------------------------------------------


def as_started(request: Doc) -> Doc:
    """In the new interpreter: what each package is, with what the program itself puts on sys.path."""
    own: object = __spec__.loader if __spec__ is not None else None
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not own]
    launch, folder = request["launch"], request["folder"]
    base = base_path()
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    first = [] if is_safe else own_entry(launch, folder)
    sys.path[:] = first + base
    done = list(changes(*code_of(launch, folder), folder))
    for change in done:
        if change["what"] == "first":
            first.insert(0, change["entry"])
        elif change["what"] == "last":
            base.append(change["entry"])
    named = {change["entry"] for change in done if change["what"] == "import"}
    named |= {launch["target"].split(".")[0]} if launch["how"] == "-m" else set()
    cells = []
    for package in request["packages"]:
        cell = (package["package"], (shown(launch), lambda: list(first)), folder)
        cells.append(answer_to(cell, lambda _folder: base, lambda _finder: None))
    owners = {package["package"]: recorded(package, {"python": {"path": base}}) for package in request["packages"]}
    done = [change for change in done if change["what"] != "import"]
    return {"cells": cells, "changes": done, "recorded": owners, "named": sorted(named & set(owners))}


def ask(launch: Doc, words: list[str], exe: str, folder: str, env: Doc, request: Doc) -> Tuple[Doc, str]:
    """(answer, reason of none) of an interpreter that is started as the program was."""
    asked = {"as_started": {"launch": launch, "folder": folder, "packages": request["packages"]}}
    envelope = dict(sys.modules["__main__"].ENVELOPE, request=asked, seconds=CHILD_LIMIT)
    argv = [words[0], *launch["flags"], "-c", envelope["starter"]]
    # The name decides which virtual environment it is, the executable is that of the process.
    own = {name: value for name, value in env.items() if name not in ("PYTHONINSPECT", "PYTHONSTARTUP")}
    try:
        done = subprocess.run(argv, executable=exe, cwd=folder, env=own, timeout=CHILD_LIMIT,
                              input=json.dumps(envelope).encode() + b"\n", stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)  # fmt: skip
        document = json.loads(done.stdout.decode("utf-8", "replace").rpartition(envelope["mark"])[2])
        return document["answer"], ""
    except subprocess.TimeoutExpired:
        return {}, "took longer than %d s" % CHILD_LIMIT
    except (OSError, ValueError, KeyError) as error:
        return {}, "%s: %s" % (type(error).__name__, str(error)[:200])


# --- how old it is ----------------------------------------------------------------------------------------------------


def newest(folder: str, is_installed: bool) -> Tuple[float, str]:
    """(time, path) of the last change of a Python file below a package's folder.

    An installer keeps a file's own time, so of installed ones the time counts at which the file system got them.
    """
    best, left = (0.0, ""), FILES
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        # envgen-install writes the two, also while another service runs.
        mine = (name for name in names if name.endswith(".py") and name not in ("_version.py", "_build_meta.py"))
        for path in (os.path.join(top, name) for name in mine):
            left -= 1
            try:
                status = os.stat(path)
            except OSError:
                continue
            best = max(best, (status.st_ctime if is_installed else status.st_mtime, path))
        if left < 0:
            break
    return best


# --- the document -----------------------------------------------------------------------------------------------------


def ours(all_pids: list[int], parents: Dict[int, int]) -> set[int]:
    """This program, what started it, and what it starts."""
    mine, pid = {os.getpid()}, parents.get(os.getpid(), 0)
    while pid > 1 and OURS in read_bytes("/proc/%d/cmdline" % pid, CODE_LIMIT):
        mine.add(pid)
        pid = parents.get(pid, 0)
    return mine | {pid for pid in all_pids if OURS in read_bytes("/proc/%d/cmdline" % pid, CODE_LIMIT)}


def examine(request: Doc, until: float) -> Doc:
    """Every Python program of the container."""
    names = [package["package"] for package in request["packages"]]
    all_pids = pids()
    facts = {pid: stat_of(pid) for pid in all_pids}
    skipped = ours(all_pids, {pid: parent for pid, (_, parent, _) in facts.items()})
    boot, ticks = clock()
    answers: Dict[str, Tuple[Doc, str]] = {}
    found: List[Doc] = []
    hidden = 0
    for pid in all_pids[:MOST]:
        state, _, started = facts[pid]
        if state in ("", "Z") or pid in skipped:
            continue
        exe, words = link(pid, "exe"), words_of(pid)
        if exe is None:
            hidden += any(word in " ".join(words[:2]) for word in ("python", "vllm"))  # of another user
            continue
        if not re.match(r"python[0-9.]*( \(deleted\))?$", os.path.basename(exe)):
            continue
        launch, folder, env = launch_of(words), link(pid, "cwd") or "/", variables_of(pid)
        if launch and launch["how"] == "script" and absolute(launch["target"], folder).startswith(OWN_FOLDER):
            continue
        top = pid
        while top in facts and facts[top][1] > 0:
            top = facts[top][1]
        fact: Doc = {"pid": pid, "top": top, "started": boot + started / ticks, "folder": folder,
                     "title": shown(launch) if launch else words[0][:60] if words else exe,
                     "executable": exe, "mapped": mapped(pid, names)}  # fmt: skip
        fact["variables"] = {name: env[name] for name in VARIABLES if name in env}
        if launch is not None:
            key = json.dumps([launch, exe, words[0], folder, sorted(env.items())])
            if key not in answers:
                late = time.time() > until
                answers[key] = ({}, "no time left") if late else ask(launch, words, exe, folder, env, request)
            answer, why = answers[key]
            fact.update(cells=answer.get("cells", []), changes=answer.get("changes", []), error=why)
            fact.update(named=answer.get("named", []), how=launch["how"], target=target_of(launch))
            fact["recorded"] = [dict(one, package=name) for name, owners in answer.get("recorded", {}).items()
                                for one in owners]  # fmt: skip
        found.append(fact)
    return {"processes": found, "hidden": hidden}


def ages(request: Doc, document: Doc) -> list[Doc]:
    """The newest file of each package's folder in question."""
    folders: Dict[str, str] = {}
    for package in request["packages"]:
        home = home_of(package)
        if home.endswith("/__init__.py"):
            folders[os.path.dirname(home)] = package["package"]
    for process in document["processes"]:
        for one in process.get("recorded", []):
            if one["file"].endswith("/__init__.py"):
                folders.setdefault(os.path.dirname(one["file"]), one["package"])
    mounts = tuple(package["mount"] + "/" for package in request["packages"])
    found = []
    for folder, package in folders.items():
        when, path = newest(folder, not (folder + "/").startswith(mounts))
        found.append({"package": package, "folder": folder, "file": path, "changed": when})
    return found


def homes(request: Doc) -> list[Doc]:
    return [{"package": package["package"], "file": home_of(package)} for package in request["packages"]]


def answer(request: Doc) -> Doc:
    """All Python programs; in an interpreter that it started itself, that one's answer."""
    if "as_started" in request:
        return as_started(request["as_started"])
    document = examine(request, time.time() + request["seconds"] - SPARE)
    document.update(homes=homes(request), ages=ages(request, document))
    return document
