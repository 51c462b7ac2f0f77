"""Runs inside the container: finds the file that `import X` loads, for each way to start Python and
each folder.

A new interpreter per question would take 15 ms. Instead ``sys.path`` is set as an interpreter does
before user code, and every finder on ``sys.meta_path`` is asked; tests/engine compares each answer
with a real interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any, Callable, List, Tuple

from envgen.inside.common import Doc

Way = Tuple[str, Callable[[], List[str]]]
Cell = Tuple[str, Way, str]


def base_path() -> list[str]:
    """sys.path from PYTHONPATH, the standard library and site, without the entry of the program
    itself.
    """
    # With these Python puts no entry of its own in front, as it does for -c and stdin.
    is_safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if is_safe or sys.path[:1] not in ([""], [os.getcwd()]):
        return list(sys.path)
    return sys.path[1:]


def absolute(entry: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, entry))


def finder_name(finder: Any) -> str:
    kind = finder if isinstance(finder, type) else type(finder)
    module = getattr(kind, "__module__", "?")
    name = getattr(kind, "__qualname__", str(kind))
    return (
        name
        if module in ("_frozen_importlib", "_frozen_importlib_external")
        else f"{module}.{name}"
    )


def find(name: str) -> tuple[Any, str]:
    """(spec or None, finder) of `import name` now."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__spec__", None), "already imported when Python starts"
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, None) if find_spec is not None else None
        if spec is not None:
            return spec, finder_name(finder)
    return None, ""


def deciding_entry(folder: str) -> str | None:
    """The entry of sys.path for ``folder``, as written there; None without one."""
    same = (
        entry
        for entry in sys.path
        if os.path.abspath(entry or os.getcwd()) == os.path.abspath(folder)
    )
    return next(same, None)


def describe(name: str) -> Doc:
    """One answer, with the current sys.path and working folder."""
    spec, finder = find(name)
    if spec is None:
        return {"kind": "missing"}
    portions = list(spec.submodule_search_locations or [])
    if spec.origin in (None, "namespace"):
        entries = [deciding_entry(os.path.dirname(portion)) for portion in portions]
        return {"kind": "namespace", "portions": portions, "entries": entries, "finder": finder}
    package = spec.submodule_search_locations is not None
    parent = os.path.dirname(spec.origin)
    entry = deciding_entry(os.path.dirname(parent) if package else parent)
    kind = "regular" if package else "module"
    return {
        "kind": kind,
        "origin": spec.origin,
        "entry": entry,
        "finder": finder,
        "portions": portions,
    }


def launches(scripts: list[Doc]) -> list[Way]:
    """Each way to start Python: its name, and its entries in front of sys.path (called in the
    folder in question).
    """
    ways = [("-c", lambda: [""]), ("-m", lambda: [os.getcwd()])]
    if sys.version_info >= (3, 11):
        ways.append(("-P", list))
    for script in scripts:
        if not script.get("same"):
            continue
        own = [os.path.dirname(script["real"])]
        if "-P" in script["flags"]:
            own = []
        ways.append((script["name"], own.copy))
    if not any(script["path"] for script in scripts):
        folder = os.path.dirname(sys.executable)  # of any console script
        ways.append(("script", lambda: [folder]))
    if getattr(sys.flags, "safe_path", False):
        return [(name, list) for name, _ in ways]
    return ways


def plan_cells(request: Doc, scripts: list[Doc]) -> list[Cell]:
    """Every question: package, way to start, folder."""
    names = [package["package"] for package in request.get("packages", [])]
    ways = launches(scripts)
    cells = [
        (name, way, folder)
        for folder in request.get("folders", [])
        for way in ways
        for name in names
    ]
    folders = request.get("folders") or ["/"]
    for name in request.get("also", []):
        cells.append((name, ways[0], folders[0]))
    return cells


def answer_to(cell: Cell, base: list[str]) -> Doc:
    name, (how, own), folder = cell
    result = {"package": name, "how": how, "folder": folder}
    try:
        os.chdir(folder)
    except OSError as error:
        result.update(kind="no-folder", error=str(error.strerror))
        return result
    sys.path[:] = own() + base
    try:
        result.update(describe(name))
    except (Exception, SystemExit) as error:  # raised by an import hook
        result.update(kind="error", error=f"{type(error).__name__}: {str(error)[:300]}")
    return result


def imports(request: Doc, document: Doc) -> None:
    """All cells of this interpreter. ``sys.path`` and the folder are as before, afterwards."""
    scripts = document["scripts"] = scripts_of(request)
    path = list(sys.path)
    folder = os.getcwd()
    base = base_path()
    cells: list[Doc] = []
    document["imports"] = cells
    try:
        for cell in plan_cells(request, scripts):
            cells.append(answer_to(cell, base))
    finally:
        sys.path[:] = path
        os.chdir(folder)


def entries(document: Doc) -> list[str]:
    """sys.path of the interpreter itself."""
    path: list[str] = document.get("python", {}).get("path", sys.path)
    return path


def call(argv: list[str], limit: float) -> tuple[str, str]:
    """(stdout of a program, reason of a failure); killed after ``limit`` seconds."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=limit)
    except subprocess.TimeoutExpired:
        return "", f"took longer than {limit:.0f} s"
    except OSError as error:
        return "", str(error.strerror)
    status = f"ended with status {done.returncode}" if done.returncode else ""
    return done.stdout.decode("utf-8", "replace"), status


def without_own_finder() -> None:
    """Take envgen's own finder away, which no other program has."""
    own: object = __spec__.loader if __spec__ is not None else None
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not own]


def interpreter_of(script: str) -> tuple[str | None, list[str]]:
    """(program, flags) of a script's first line; (None, []) for a binary or another language."""
    with open(script, "rb") as file:
        head = file.read(1024).decode("utf-8", "surrogateescape")
    if not head.startswith("#!"):
        return None, []
    line = head[2:].partition("\n")[0]
    words = line.split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
        if words:
            words[0] = shutil.which(words[0]) or words[0]
    if not words or "python" not in os.path.basename(words[0]):
        return None, []
    return words[0], words[1:]


def same_interpreter(program: str) -> bool:
    """Whether it is the same file in the same folder: a virtual environment's python is a link to
    its base's.
    """
    places = []
    for path in (program, sys.executable):
        folder = os.path.dirname(os.path.abspath(path))
        places.append((os.path.realpath(folder), os.path.realpath(path)))
    return places[0] == places[1]


def scripts_of(request: Doc) -> list[Doc]:
    """Facts of every console script that the request names."""
    facts = []
    for package in request.get("packages", []):
        for name in package.get("scripts", []):
            path = shutil.which(name)
            fact = {"name": name, "package": package["package"], "path": path}
            if path is not None:
                program, flags = interpreter_of(path)
                same = (
                    program is not None
                    and same_interpreter(program)
                    and all(flag == "-P" for flag in flags)
                )
                fact.update(
                    real=os.path.realpath(path), interpreter=program, flags=flags, same=same
                )
            facts.append(fact)
    return facts
