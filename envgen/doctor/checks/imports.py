"""Import truth: does each way of starting Python, from each folder, import the code that the profile names?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from envgen.doctor import remedies
from envgen.doctor.model import Cell, Context, Finding, Probe, Remedy, Where, check, error, ok
from envgen.profile.model import Source


class Case(Enum):
    """What went wrong; the value is part of the title."""

    TRAP = "the namespace-package trap: an empty package is imported"
    LEFTOVERS = "leftovers of an uninstalled wheel hide the package"
    WHEEL = "an installed wheel is imported, not the mounted checkout"
    OTHER_COPY = "another copy is imported, not the mounted checkout"
    MISSING = "can't be imported"
    SHADOWED = "a file of the same name is imported"
    FROM_MOUNT = "is imported from a mount, not from the image"
    FROM_FOLDER = "the current folder is imported, not the image's package"
    FROM_ELSEWHERE = "is imported from outside the image's site-packages"
    FAILED = "can't be located"


@dataclass(frozen=True)
class Wrong:
    """A case, the entry or finder that decided it, and all cells that have it."""

    case: Case
    target: str  # the folder or file that wins
    entry: str | None  # the entry of sys.path that decided ("": the current folder; None: no entry)
    finder: str
    cells: tuple[Cell, ...]


def below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_site(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


def cases_of(cell: Cell, source: Source, context: Context, probe: Probe) -> list[tuple[Case, str, str | None]]:
    """(case, folder or file that wins, deciding entry) of a cell; empty if the cell is right."""
    mounted = source.origin.kind == "checkout"
    if cell.kind == "no-folder":
        return []
    if cell.kind in ("missing", "error"):
        return [(Case.MISSING if cell.kind == "missing" else Case.FAILED, cell.error, None)]
    if cell.kind == "module":
        return [(Case.SHADOWED, cell.origin, cell.entry)]
    if cell.kind == "namespace":
        # Two entries of sys.path ('' and PYTHONPATH) may lead to one folder: the first one decides.
        portions = dict(zip(reversed(cell.portions), reversed(cell.entries), strict=True))
        return [
            (Case.LEFTOVERS if is_site(path) else Case.TRAP, path, portions[path])
            for path in dict.fromkeys(cell.portions)
        ]
    if mounted:
        if below(cell.origin, str(source.mount)):
            return []
        return [(Case.WHEEL if is_site(cell.origin) else Case.OTHER_COPY, cell.origin, cell.entry)]
    mounts = [mount.target for mount in context.container.mounts] if context.container else []
    # The entry of the current folder or of the script's folder.
    if cell.entry == "" or (cell.entry is not None and cell.entry not in probe.python.path):
        return [(Case.FROM_FOLDER, cell.origin, cell.entry)]
    if any(below(cell.origin, mount) for mount in mounts):
        return [(Case.FROM_MOUNT, cell.origin, cell.entry)]
    return [] if is_site(cell.origin) else [(Case.FROM_ELSEWHERE, cell.origin, cell.entry)]


def wrongs(source: Source, context: Context, probe: Probe) -> list[Wrong]:
    """The wrong cells, grouped by cause, in the order of the cases."""
    groups: dict[tuple[Case, str, bool, str], list[tuple[Cell, str | None]]] = {}
    for cell in probe.cells(source.package):
        for case, target, entry in cases_of(cell, source, context, probe):
            own = entry == "" or entry is None or entry not in probe.python.path
            groups.setdefault((case, target, own, cell.finder), []).append((cell, entry))
    found = [
        Wrong(case, target, members[0][1], finder, tuple(cell for cell, _ in members))
        for (case, target, _, finder), members in groups.items()
    ]
    return sorted(found, key=lambda wrong: list(Case).index(wrong.case))


def ways(cells: Sequence[Cell], everything: Iterable[Cell]) -> str:
    """Summary of cells: `-c, -m in /workspace`."""
    whole = tuple(cell for cell in everything if cell.kind != "no-folder")
    if len(cells) == len(whole):
        return "every way of starting Python, from every folder"
    folders: dict[str, list[str]] = {}
    for cell in cells:
        folders.setdefault(cell.folder, []).append(cell.how)
    same: dict[tuple[str, ...], list[str]] = {}
    for folder, hows in folders.items():
        same.setdefault(tuple(hows), []).append(folder)
    count = len({cell.folder for cell in whole})
    return "; ".join(
        f"{', '.join(hows)} in {'every folder' if len(where) == count else ', '.join(where)}"
        for hows, where in same.items()
    )


def decided_by(wrong: Wrong, probe: Probe) -> str:
    """The entry or finder that decided, in words."""
    entry, how = wrong.entry, wrong.cells[0].how
    if entry is None:
        return f"the import hook {wrong.finder}" if wrong.finder not in ("", "PathFinder") else "no entry of sys.path"
    if entry in probe.python_path:
        return f"the entry {entry} of PYTHONPATH"
    if entry == "" or (how == "-m" and entry not in probe.python.path):
        return f"the current folder, which `{how}` puts first on sys.path"
    if entry not in probe.python.path:
        return f"the script's own folder {entry}"
    return f"the entry {entry} of sys.path"


def cure(wrong: Wrong, name: str, source: Source, context: Context, probe: Probe) -> Remedy:
    """The remedy for a case."""
    on_path = [str(entry) for entry in context.profile.python_path]
    if wrong.case is Case.LEFTOVERS:
        return remedies.inside(context, "rm", "-r", wrong.target)
    if wrong.case is Case.SHADOWED and wrong.entry != "":
        return remedies.inside(context, "rm", wrong.target)
    if wrong.case is Case.FAILED:
        return remedies.inside(
            context, "python3", "-c", f"import importlib.util; importlib.util.find_spec({source.package!r})"
        )
    if source.origin.kind == "checkout":
        parent = str(source.mount).rsplit("/", 1)[0] or "/"
        if parent in on_path:
            return remedies.python_path(context, without=[parent])
        if str(source.mount) not in on_path:
            return remedies.python_path(context)
        if str(source.mount) not in probe.python_path:
            return remedies.renew(context)  # the container is older than the profile
        return remedies.install(context, name, source)
    if wrong.entry in on_path:
        return remedies.python_path(context, without=[str(wrong.entry)])
    if wrong.case in (Case.FROM_FOLDER, Case.SHADOWED):
        return remedies.line("working_dir: /")
    return remedies.up(context) if wrong.case is Case.FROM_MOUNT else remedies.build(context)


def judge_source(name: str, source: Source, context: Context, probe: Probe) -> list[Finding]:
    """The findings about a source; one OK finding if every cell is right."""
    everything, found = probe.cells(source.package), list[Finding]()
    wanted = "site-packages of the image"
    if source.origin.kind == "checkout":
        wanted = f"{source.mount}/{source.package}/__init__.py, the mounted checkout"
    for wrong in wrongs(source, context, probe):
        what = {
            Case.TRAP: f"__file__ is None, __path__ = [{wrong.target}]",
            Case.LEFTOVERS: f"{wrong.target} has no __init__.py, so it is a namespace package",
            Case.MISSING: "ModuleNotFoundError",
        }.get(wrong.case, wrong.target)
        who = "" if wrong.case in (Case.MISSING, Case.FAILED) else f"; decided by {decided_by(wrong, probe)}"
        found.append(
            error(
                f"{source.package}: {wrong.case.value}", f"{what}; with {ways(wrong.cells, everything)}{who}", wanted,
                cure(wrong, name, source, context, probe), case=wrong.case.name.lower().replace("_", "-"), source=name,
                target=wrong.target, entry=wrong.entry, finder=wrong.finder,
                ways=[[cell.how, cell.folder] for cell in wrong.cells],
            )
        )  # fmt: skip
    if found or not everything:
        return found
    origins = sorted({cell.origin for cell in everything if cell.origin})
    count = sum(cell.kind != "no-folder" for cell in everything)
    title = f"{source.package} is {', '.join(origins)} ({count} ways of starting Python)"
    return [ok(title, source=name, origins=origins)]


@check("import.truth", Where.INSIDE, needs="probe")
def import_truth(context: Context, probe: Probe) -> list[Finding]:
    sources = context.profile.sources.items()
    return [finding for name, source in sources for finding in judge_source(name, source, context, probe)]
