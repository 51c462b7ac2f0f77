"""Import truth: does each way of starting Python, from each folder, import the code that the
profile names?
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Remedy, Section, check, error, info, ok
from envgen.doctor.probed import Imported, Origins, Probe
from envgen.doctor.programs import Tried
from envgen.profile.model import Source
from envgen.text import counted, shell_line


class Case(Enum):
    """What went wrong; the value is part of the title."""

    TRAP = "the namespace-package trap: an empty package is imported"
    LEFTOVERS = "leftovers of an uninstalled wheel hide the package"
    WHEEL = "an installed wheel is imported, not the mounted checkout"
    OTHER_COPY = "another copy is imported, not the mounted checkout"
    OTHER_FILE = "another file of the checkout is imported, not the package"
    MISSING = "can't be imported"
    SHADOWED = "a file of the same name is imported"
    FROM_FOLDER = "the current folder is imported, not the image's package"
    FROM_ELSEWHERE = "is imported from outside the image's site-packages"
    FAILED = "can't be located"


@dataclass(frozen=True)
class WrongImport:
    """A case, the entry or finder that decided it, and all cells that have it."""

    case: Case
    target: str  # the folder or file that wins
    entry: str | None  # the entry of sys.path that decided ("": the current folder; None: no entry)
    finder: str
    cells: tuple[Imported, ...]


def below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or inside it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def is_site(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


def cases_of(cell: Imported, source: Source, probe: Probe) -> list[tuple[Case, str, str | None]]:
    """(case, folder or file that wins, deciding entry) of a cell; empty if the cell is right."""
    if cell.kind == "no-folder":
        return []
    if cell.kind == "missing":
        return [(Case.MISSING, cell.error, None)]
    if cell.kind == "error":
        return [(Case.FAILED, cell.error, None)]
    if cell.kind == "namespace":
        cases: dict[str, tuple[Case, str, str | None]] = {}
        # Two entries of sys.path ('' and PYTHONPATH) may lead to one folder: the first one decides.
        for path, entry in zip(cell.portions, cell.entries, strict=True):
            case = Case.LEFTOVERS if is_site(path) else Case.TRAP
            cases.setdefault(path, (case, path, entry))
        return list(cases.values())
    if cell.origin and cell.origin == wanted(source, probe):
        return []
    return [(_case_of_file(cell, source, probe), cell.origin, cell.entry)]


def _case_of_file(cell: Imported, source: Source, probe: Probe) -> Case:
    """The case of a file that is not the right one."""
    if cell.kind == "module":
        return Case.SHADOWED
    if source.origin.kind == "checkout":
        if below(cell.origin, str(source.mount)):
            return Case.OTHER_FILE
        return Case.WHEEL if is_site(cell.origin) else Case.OTHER_COPY
    # The entry of the current folder or of the script's folder.
    is_own = cell.entry is not None and cell.entry not in probe.python.path
    return Case.FROM_FOLDER if is_own or cell.entry == "" else Case.FROM_ELSEWHERE


def own_file(source: Source, origins: Iterable[Origins]) -> str:
    """The package's own file: of a mounted source in its mount, else that of its distribution's
    RECORD; "": unknown.
    """
    of_package = [one for one in origins if one.package == source.package]
    if source.origin.kind == "checkout":
        return next(
            (one.home for one in of_package if one.home),
            f"{source.mount}/{source.package}/__init__.py",
        )
    recorded = [file for one in of_package for file in one.recorded]
    named = [
        one
        for one in recorded
        if canonicalize_name(one.name) == canonicalize_name(source.distribution)
    ]
    return next((one.file for one in named or recorded), "")


def wanted(source: Source, probe: Probe) -> str:
    """The one file that every way of starting Python should import.

    A package that came without a RECORD (from Debian) has the file that most ways import from
    site-packages.
    """
    origins = [
        cell.origin
        for cell in probe.cells(source.package)
        if cell.kind == "regular" and is_site(cell.origin)
    ]
    return own_file(source, probe.origins) or max(origins, key=origins.count, default="")


def wrongs(source: Source, probe: Probe) -> list[WrongImport]:
    """The wrong cells, grouped by cause, in the order of the cases."""
    groups: dict[tuple[Case, str, bool, str], WrongImport] = {}
    for cell in probe.cells(source.package):
        for case, target, entry in cases_of(cell, source, probe):
            is_own = not entry or entry not in probe.python.path
            key = (case, target, is_own, cell.finder)
            wrong = groups.get(key)
            if wrong is None:
                wrong = WrongImport(case, target, entry, cell.finder, ())
            cells = (*wrong.cells, cell)
            groups[key] = replace(wrong, cells=cells)
    in_order = []
    for case in Case:
        in_order += [wrong for wrong in groups.values() if wrong.case is case]
    return in_order


def ways(cells: Sequence[Imported], everything: Iterable[Imported]) -> str:
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


def file_that_changed_sys_path(wrong: WrongImport, probe: Probe) -> str:
    """The file that put the deciding entry on sys.path, or that started the import hook; "" if none
    is known.
    """
    entry = wrong.entry
    starters = probe.starters
    if entry is None:
        module = posixpath.basename(starters.hooks.get(wrong.finder, "")).removesuffix(".py")
        lines = [
            pth.path for pth in probe.pth if module and any(module in line for line in pth.lines)
        ]
        return next(iter(lines), starters.hooks.get(wrong.finder, ""))
    if entry not in probe.python.path or entry in probe.python_path or is_site(f"{entry}/"):
        return ""
    # A line of a .pth file is a folder, absolute or seen from the file's own, or code that names
    # one.
    named = [
        pth.path
        for pth in probe.pth
        if any(
            posixpath.normpath(posixpath.join(posixpath.dirname(pth.path), line)) == entry
            or entry in line
            for line in pth.lines
        )
    ]
    return next(iter([*named, *starters.customize.values()]), "")


def decided_by(wrong: WrongImport, probe: Probe) -> str:
    """The entry or finder that decided, in words."""
    entry = wrong.entry
    how = wrong.cells[0].how
    by = file_that_changed_sys_path(wrong, probe)
    if entry is None:
        if wrong.finder in ("", "PathFinder"):
            return "no entry of sys.path"
        return f"the import hook {wrong.finder}" + (f", which {by} starts" if by else "")
    if entry in probe.python_path:
        return f"the entry {entry} of PYTHONPATH"
    if entry == "" or (how == "-m" and entry not in probe.python.path):
        return f"the current folder, which `{how}` puts first on sys.path"
    if entry not in probe.python.path:
        return f"the script's own folder {entry}"
    return f"the entry {entry} of sys.path" + (f", which {by} adds" if by else "")


def cure(wrong: WrongImport, name: str, source: Source, context: Context, probe: Probe) -> Remedy:
    """The remedy for a case."""
    on_path = [str(entry) for entry in context.profile.python_path]
    mounts = [str(one.mount) for one in context.profile.mounted_sources.values()]
    mounted = source.origin.kind == "checkout"
    own_entry = wrong.entry is not None and (
        wrong.entry == "" or wrong.entry not in probe.python.path
    )
    if wrong.case is Case.LEFTOVERS:
        return remedies.inside(context, "rm", "-r", wrong.target)
    if wrong.case is Case.FAILED:
        return remedies.inside(
            context,
            "python3",
            "-c",
            f"import importlib.util; importlib.util.find_spec({source.package!r})",
        )
    if wrong.case is Case.OTHER_FILE:
        return remedies.away(context, wrong.target)
    in_checkout = wrong.entry is not None and any(below(wrong.entry, mount) for mount in mounts)
    if wrong.entry in on_path and not in_checkout:
        return remedies.python_path(context, without=[str(wrong.entry)])
    if wrong.case in (Case.SHADOWED, Case.OTHER_COPY, Case.FROM_ELSEWHERE) and (
        by := file_that_changed_sys_path(wrong, probe)
    ):
        editable = wrong.entry is None and "__editable__" in wrong.finder
        return (
            remedies.install(context, name, source)
            if editable and mounted
            else remedies.away(context, by)
        )
    if (own_entry or in_checkout) and (
        wrong.case is Case.SHADOWED or (mounted and wrong.case in (Case.OTHER_COPY, Case.WHEEL))
    ):
        return remedies.away(context, _top(wrong))
    if wrong.case is Case.SHADOWED:
        return remedies.away(context, wrong.target)
    if mounted:
        parent = str(source.mount).rsplit("/", 1)[0] or "/"
        if parent in on_path:
            return remedies.python_path(context, without=[parent])
        if not any(below(entry, str(source.mount)) for entry in on_path):
            return remedies.python_path(context)
        if not any(below(entry, str(source.mount)) for entry in probe.python_path):
            return remedies.renew(context)  # the container is older than the profile
        return remedies.install(context, name, source)
    if wrong.case is Case.FROM_FOLDER:
        is_there = any(cell.folder == str(context.profile.working_dir) for cell in wrong.cells)
        return remedies.line("working_dir: /") if is_there else remedies.away(context, _top(wrong))
    return remedies.renew(context)


def _top(wrong: WrongImport) -> str:
    """What to move away: the module's file, or the package's folder."""
    package = wrong.case is not Case.SHADOWED and posixpath.basename(wrong.target).startswith(
        "__init__."
    )
    return posixpath.dirname(wrong.target) if package else wrong.target


def restored(name: str, source: Source, file: str, context: Context) -> Remedy:
    """Bring a file back: of a checkout as git has it (the edit stays in its stash), else with a new
    container.
    """
    folder = context.checkouts.get(name, "")
    if source.origin.kind != "checkout":
        return remedies.anew(context)
    inner = posixpath.relpath(file, str(source.mount))
    if not folder:
        return remedies.inside(
            context, "git", "-C", str(source.mount), "stash", "push", "--", inner
        )
    return Remedy(shell_line(["git", "-C", folder, "stash", "push", "--", inner]))


def judge_source(name: str, source: Source, context: Context, probe: Probe) -> list[Finding]:
    """The findings about a source; one OK finding if every cell is right."""
    everything = probe.cells(source.package)
    findings = []
    mounted = source.origin.kind == "checkout"
    file = wanted(source, probe)
    right = f"{file}, {'the mounted checkout' if mounted else 'as the RECORD of its wheel has it'}"
    if not file:
        right = f"{source.package} in the image's site-packages"
    for wrong in wrongs(source, probe):
        what = {
            Case.TRAP: f"__file__ is None, __path__ = [{wrong.target}]",
            Case.LEFTOVERS: f"{wrong.target} has no __init__.py, so it is a namespace package",
            Case.MISSING: "ModuleNotFoundError",
        }.get(wrong.case, wrong.target)
        alone = (Case.MISSING, Case.FAILED)
        who = "" if wrong.case in alone else f"; decided by {decided_by(wrong, probe)}"
        findings.append(
            error(
                f"{source.package}: {wrong.case.value}",
                f"{what}; with {ways(wrong.cells, everything)}{who}",
                right,
                cure(wrong, name, source, context, probe),
                case=wrong.case.name.lower().replace("_", "-"),
            )
        )
    if findings or not everything:
        return findings
    return [tried(name, source, file, everything, context)]


def tried(
    name: str, source: Source, file: str, cells: Sequence[Imported], context: Context
) -> Finding:
    """Whether the right file can be imported, too. OK only if an import has succeeded."""
    package = source.package
    tried = context.tried.get(package, Tried(untried="no container of the service runs"))
    if tried.untried:
        return info(f"{package} is {file}, and was not imported", tried.untried)
    if tried.problem:
        what = f"{package}: `import {package}` fails"
        cause = f"{tried.problem}; {file} is found"
        return error(
            what,
            cause,
            "an import that succeeds",
            _import_cure(name, source, file, tried, context),
            case="fails",
        )
    if file and tried.file != file:
        again = remedies.inside(context, "python3", "-c", f"import {package}; print({package})")
        what = f"{package}: `import {package}` gives another file"
        gives = tried.file or "an empty namespace"
        return error(what, gives, file, again, case="gives-another")
    cells = [cell for cell in cells if cell.kind != "no-folder"]
    folders = len({cell.folder for cell in cells})
    ways = len({cell.how for cell in cells})
    each = f"found by {counted(ways, 'way')} of starting Python in {counted(folders, 'folder')}"
    return ok(f"{package} is {file} (imported in {tried.seconds:.1f} s; {each})")


def _import_cure(name: str, source: Source, file: str, tried: Tried, context: Context) -> Remedy:
    if (
        tried.problem.startswith("SyntaxError")
        and f"({posixpath.basename(file)}, " in tried.problem
    ):
        return restored(name, source, file, context)
    if not tried.problem.startswith("ModuleNotFoundError"):
        return remedies.inside(
            context, "python3", "-c", f"import {source.package}"
        )  # it prints where
    if (
        source.origin.kind == "checkout"
        and source.binaries is None
        and not source.install.dependencies
    ):
        return remedies.line(f"sources: {{{name}: {{install: {{dependencies: true}}}}}}")
    return remedies.install(context, name, source, force=True)


@check("import.truth", Section.INSIDE, needs="probe")
def import_truth(context: Context, probe: Probe) -> list[Finding]:
    sources = context.profile.sources.items()
    return [
        finding
        for name, source in sources
        for finding in judge_source(name, source, context, probe)
    ]
