"""Runs INSIDE the container: which file would `import X` take, started in each way, from each folder?

A part that fails becomes an entry of ``errors``; the packages in question are looked for, never imported.

A fresh interpreter per question would cost 15 ms each. Instead one forked child replays what an interpreter does to
``sys.path`` before it runs user code, and asks every finder on ``sys.meta_path`` in turn; tests/engine holds each
answer against an interpreter that was really started that way. The child keeps a hanging, crashing or printing
import hook away from the document.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Callable, List, Tuple

from envgen.inside.probe import facts, machine, patches, sources
from envgen.inside.probe.basics import Doc, in_child
from envgen.inside.probe.scripts import ask_other, scripts_of

Way = Tuple[str, Callable[[], List[str]]]
Cell = Tuple[str, Way, str]

# Name in the document, and who fills it; in this order.
FACTS = (
    ("pth", facts.pth_files),
    ("distributions", facts.distributions),
    ("portions", facts.portions),
    ("roots", facts.roots),
    ("environment", facts.environment),
    ("folders", facts.folders),
    ("encodings", facts.encodings),
    ("patched", patches.patched_files),
    ("locked", patches.locked_versions),
    ("protected", patches.protected_versions),
    ("system", machine.system),
    ("cuda", machine.cuda),
    ("gpus", machine.gpus),
    ("processes", machine.processes),
    ("known", sources.known_variables),
    ("flags", sources.serve_flags),
    ("defaults", sources.server_defaults),
    ("claimed", sources.claimed_patches),
    ("loads", facts.loads),
)
LIMIT = 10.0  # seconds, for everything
HOOK_LIMIT = 4.0  # seconds, for all import hooks together


class Late(BaseException):
    """The time is up. Not an Exception, so that an import hook's own `except Exception` can't swallow it."""


def is_safe_path() -> bool:
    """True when this interpreter puts no entry of its own in front of sys.path, as it does for -c and stdin."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def base_path() -> list[str]:
    """sys.path as PYTHONPATH, the standard library and site made it: without the entry for the program itself."""
    return list(sys.path) if is_safe_path() or sys.path[:1] not in ([""], [os.getcwd()]) else sys.path[1:]


class Paths:
    """sys.path of an interpreter that starts in a given folder. Only relative entries of PYTHONPATH depend on it."""

    def __init__(self, base: list[str], pythonpath: str, start: str) -> None:
        entries = pythonpath.split(os.pathsep) if pythonpath and not sys.flags.ignore_environment else []
        seen = list(dict.fromkeys(absolute(entry, start) for entry in entries))
        # site makes the entries absolute and drops repetitions; when the beginning isn't that, leave sys.path alone.
        self.relative = bool(entries) and any(not os.path.isabs(e) for e in entries) and base[: len(seen)] == seen
        self.entries = entries
        self.base = base
        self.rest = base[len(seen) :]

    def for_folder(self, folder: str) -> list[str]:
        """The part of sys.path behind the program's own entry, for an interpreter started in ``folder``."""
        if not self.relative:
            return list(self.base)
        return list(dict.fromkeys([absolute(entry, folder) for entry in self.entries] + self.rest))


def absolute(entry: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, entry))


def finder_name(finder: Any) -> str:
    kind = finder if isinstance(finder, type) else type(finder)
    module = getattr(kind, "__module__", "?")
    name = getattr(kind, "__qualname__", str(kind))
    return name if module in ("_frozen_importlib", "_frozen_importlib_external") else module + "." + name


def find(name: str, announce: Callable[[str], None]) -> tuple[Any, str]:
    """What `import name` would take now: (spec or None, the finder that answered). Each finder is announced first."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__spec__", None), "already imported when Python starts"
    for finder in list(sys.meta_path):
        announce(finder_name(finder))
        look = getattr(finder, "find_spec", None)
        spec = look(name, None) if look is not None else None
        if spec is not None:
            return spec, finder_name(finder)
    return None, ""


def deciding_entry(folder: str, path: list[str]) -> str | None:
    """The entry of sys.path, as written there, that is ``folder``; None if none is."""
    for entry in path:
        if os.path.abspath(entry or os.getcwd()) == os.path.abspath(folder):
            return entry
    return None


def describe(name: str, announce: Callable[[str], None]) -> Doc:
    """One answer as plain data; sys.path and the working folder are already those of the cell."""
    spec, finder = find(name, announce)
    if spec is None:
        return {"kind": "missing"}
    portions = list(spec.submodule_search_locations or [])
    if spec.origin in (None, "namespace"):
        entries = [deciding_entry(os.path.dirname(portion), sys.path) for portion in portions]
        return {"kind": "namespace", "portions": portions, "entries": entries, "finder": finder}
    package = spec.submodule_search_locations is not None
    parent = os.path.dirname(spec.origin)
    entry = deciding_entry(os.path.dirname(parent) if package else parent, sys.path)
    kind = "regular" if package else "module"
    return {"kind": kind, "origin": spec.origin, "entry": entry, "finder": finder, "portions": portions}


def launches(scripts: list[Doc]) -> list[Way]:
    """Each way to start: its name, and what it puts in front of sys.path (asked inside the folder in question)."""
    ways: list[Way] = [("-c", lambda: [""]), ("-m", lambda: [os.getcwd()])]
    if sys.version_info >= (3, 11):
        ways.append(("-P", list))
    for script in scripts:
        if script.get("same") or script.get("mine"):
            own = [] if "-P" in script["flags"] else [os.path.dirname(script["real"])]
            ways.append((script["name"], own.copy))
    if not any(script["path"] for script in scripts):
        ways.append(("script", lambda: [os.path.dirname(sys.executable)]))  # what any console script would see
    if getattr(sys.flags, "safe_path", False):
        ways = [(name, list) for name, _ in ways]
    return ways


def plan_cells(request: Doc, scripts: list[Doc], only: list[str] | None) -> list[Cell]:
    """Every question: package, way to start, folder."""
    names = [package["package"] for package in request.get("packages", [])]
    ways = [way for way in launches(scripts) if only is None or way[0] in only]
    cells = [(name, way, folder) for folder in request.get("folders", []) for way in ways for name in names]
    first = request.get("folders", ["/"])[:1] or ["/"]
    if only is None:
        cells += [(name, ways[0], first[0]) for name in request.get("also", [])]
    return cells


def answer_to(cell: Cell, paths: Paths, announce: Callable[[str], None]) -> Doc:
    name, (how, own), folder = cell
    result = {"package": name, "how": how, "folder": folder}
    try:
        os.chdir(folder)
    except OSError as error:
        result.update(kind="no-folder", error=str(error.strerror))
        return result
    sys.path[:] = own() + paths.for_folder(os.getcwd())
    try:
        result.update(describe(name, announce))
    except Exception as error:
        result.update(kind="error", error="%s: %s" % (type(error).__name__, str(error)[:300]))
    return result


def work(cells: list[Cell], paths: Paths, out: int) -> None:
    """In the child: a line for each finder that is asked, one for each answer."""
    for cell in cells:
        line = json.dumps(answer_to(cell, paths, lambda finder: send(out, "?" + finder)))
        send(out, "=" + line)


def send(out: int, line: str) -> None:
    data = (line + "\n").encode()
    while data:
        data = data[os.write(out, data) :]


def ask(cells: list[Cell], paths: Paths, errors: list[Doc]) -> list[Doc]:
    """Fork, let the child answer, and collect. A hook that hangs or kills the child ends the list with its name."""
    data, late, status = in_child(lambda out: work(cells, paths, out), HOOK_LIMIT)
    lines = data.decode().split("\n")
    answers = [json.loads(line[1:]) for line in lines if line.startswith("=")]
    if len(answers) < len(cells):
        name, (how, _), folder = cells[len(answers)]
        finder = ([line[1:] for line in lines if line.startswith("?")] or ["?"])[-1]
        what = "hangs" if late else "kills Python (status %d)" % status
        message = "%s %s when asked for %s (%s in %s)" % (finder, what, name, how, folder)
        file = getattr(sys.modules.get(finder.rpartition(".")[0]), "__file__", None) or ""
        errors.append({"part": "imports", "what": "hang" if late else "crash", "error": message, "file": file})
        answers.append({"package": name, "how": how, "folder": folder, "kind": "error", "error": message})
    return answers


def imports(request: Doc, document: Doc) -> None:
    """All cells, of this interpreter and of the others that console scripts name."""
    only = request.get("only")
    scripts: list[Doc] = [request["script"]] if only else scripts_of(request)
    document["scripts"] = scripts
    paths = Paths(base_path(), os.environ.get("PYTHONPATH", ""), os.getcwd())
    answers = ask(plan_cells(request, scripts, only), paths, document["errors"])
    for script in scripts:
        if script.get("interpreter") and not script.get("same") and not only:
            answers += ask_other(script, request, document["errors"])
    document["imports"] = answers


# --- the document ----------------------------------------------------------------------------------------------------


def interpreter() -> Doc:
    return {
        "version": sys.version,
        "executable": sys.executable,
        "path": base_path(),
        "meta_path": [finder_name(finder) for finder in sys.meta_path],
    }


def run_part(name: str, part: Callable[[], Any], document: Doc) -> None:
    """Run one part; what it raises becomes an entry of ``errors``. After ``Late`` nothing more is started."""
    if document.get("late"):
        return
    try:
        part()
    except Late:
        document["late"] = name
        document["errors"].append({"part": name, "what": "late", "error": "took too long"})
    except BaseException as error:  # a SystemExit of a hook is not a reason to say nothing
        document["errors"].append({"part": name, "error": "%s: %s" % (type(error).__name__, str(error)[:300])})


def set_alarm() -> None:
    def late(_signal: int, _frame: object) -> None:
        raise Late()

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)


def answer(request: Doc) -> Doc:
    """Collect everything."""
    # Without our own finder, which no other program has.
    own: object = __spec__.loader if __spec__ is not None else None
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not own]
    home = os.path.expanduser("~")
    folders = (home if folder == "~" else folder for folder in request.get("folders", []))
    request = dict(request, folders=list(dict.fromkeys(folders)))
    document: Doc = {"errors": []}
    run_part("alarm", set_alarm, document)
    run_part("python", lambda: document.update(python=interpreter()), document)
    run_part("imports", lambda: imports(request, document), document)
    for name, part in () if request.get("only") else FACTS:
        run_part(name, lambda: document.update({name: part(request, document)}), document)  # noqa: B023 (called now)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return document
