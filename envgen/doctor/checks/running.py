"""The running programs: does each Python program of a container have the code that a new one would
import?
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below, is_site, own_file
from envgen.doctor.model import (
    Context,
    Finding,
    Findings,
    Remedy,
    Section,
    check,
    error,
    info,
    ok,
    warning,
)
from envgen.doctor.probed import Imported
from envgen.doctor.programs import PythonProcess, Running
from envgen.profile.model import Source
from envgen.text import counted

SOME = 3  # processes that a finding names


@dataclass(frozen=True)
class WrongFile:
    """A program that has, or would have, another file than the right one. ``evidence``: it has a
    library of it mapped.
    """

    process: PythonProcess
    origin: str
    cell: Imported | None = None
    evidence: str = ""


def right(source: Source, running: Running, process: PythonProcess) -> str:
    """The file that the program should have; "": unknown."""
    # Workers hide how they were started: what any program of the container finds counts for them.
    others = (origins for other in running.processes for origins in other.origins)
    return own_file(source, (*process.origins, *others, *running.origins))


def wrongs(source: Source, running: Running) -> Iterator[WrongFile]:
    """The programs with another file."""
    for process in running.processes:
        file = right(source, running, process)
        for library in process.mapped:
            if (
                library.package == source.package
                and file
                and library.folder != posixpath.dirname(file)
            ):
                yield WrongFile(process, f"{library.folder}/__init__.py", evidence=library.file)
        for cell in process.cells:
            # A program whose Python finds no such package has not imported one, and any folder can
            # be a namespace.
            kinds = (
                "regular",
                "module",
                *(["namespace"] if source.package in process.named else []),
            )
            if cell.package != source.package or cell.kind not in kinds:
                continue
            origin = cell.origin or ", ".join(cell.portions)
            if origin != file and (file or not is_site(origin)):
                yield WrongFile(process, origin, cell)


def decided_by(wrong: WrongFile, running: Running) -> str:
    """What made the program import it, in words."""
    cell = wrong.cell
    if cell is None:
        return f"it has {wrong.evidence} loaded"
    if cell.entry is None:
        is_hook = cell.finder not in ("", "PathFinder")
        return f"the import hook {cell.finder}" if is_hook else "no entry of sys.path"
    own = wrong.process.python_path
    configured = running.container.env.get("PYTHONPATH", "") if running.container else ""
    if own != configured and cell.entry in own.split(":"):
        return f"its PYTHONPATH is {own}, not the container's"
    return f"the entry {cell.entry or 'of its own folder'} of sys.path"


def cure(wrong: WrongFile, name: str, source: Source, running: Running, context: Context) -> Remedy:
    """What makes the next start import the right file."""
    there = replace(context, service=running.service, container=running.container)
    if wrong.cell is None:
        return remedies.restart(there)  # it was loaded before something was installed or moved
    if wrong.cell.kind == "namespace":
        return remedies.python_path(there)
    if wrong.cell.entry is None:
        return remedies.install(there, name, source)
    is_package = posixpath.basename(wrong.origin).startswith("__init__.")
    move = remedies.away(there, posixpath.dirname(wrong.origin) if is_package else wrong.origin)
    return Remedy(f"{move.text} && {remedies.restart(there).text}")


def _who(processes: list[PythonProcess]) -> str:
    some = ", ".join(f"process {one.pid} ({one.title})" for one in processes[:SOME])
    return some + (f" and {len(processes) - SOME} more" if len(processes) > SOME else "")


def _foreign(name: str, source: Source, running: Running, context: Context) -> Iterator[Finding]:
    """Programs of the service that have another file."""
    groups: dict[str, list[WrongFile]] = {}
    for wrong in wrongs(source, running):
        groups.setdefault(wrong.origin, []).append(wrong)
    for origin, members in groups.items():
        first = members[0]
        pids = {one.process.pid: one.process for one in members}
        evidence = f"{origin}, in {_who(list(pids.values()))}; {decided_by(first, running)}"
        wanted = (
            right(source, running, first.process)
            or f"{source.package} in the image's site-packages"
        )
        title = f"{running.service} runs another {source.package} than the profile's"
        yield error(
            title,
            evidence,
            wanted,
            cure(first, name, source, running, context),
            case="other",
            service=running.service,
            origin=origin,
        )


def _older(source: Source, running: Running, context: Context) -> Finding | None:
    """The oldest program that has loaded code which was changed since, or whose libraries were
    replaced.
    """
    there = replace(context, service=running.service, container=running.container)
    title = f"{running.service} runs older code of {source.package} than is there now"
    for process in sorted(running.processes, key=lambda one: one.started):
        file = right(source, running, process)
        libraries = [one for one in process.mapped if one.package == source.package]
        if gone := next((one for one in libraries if one.gone), None):
            evidence = f"{_who([process])} has {gone.file} loaded, which was replaced since"
            return warning(
                title, evidence, file or gone.folder, remedies.restart(there), case="older"
            )
        if written := next((one for one in libraries if one.changed > process.started), None):
            evidence = f"{_who([process])} has {written.file} loaded, which was written to since"
            return warning(
                title,
                evidence,
                "the library that is there now",
                remedies.restart(there),
                case="older",
            )
        if not libraries and source.package not in process.named:
            continue  # nothing shows that it has imported the package
        for age in running.ages:
            is_its = (
                age.package == source.package
                and file
                and below(age.folder, posixpath.dirname(file))
            )
            if is_its and age.changed > process.started:
                after = f"{age.changed - process.started:.0f} s after {_who([process])} started"
                evidence = f"{age.file} was changed {after}"
                return warning(
                    title,
                    evidence,
                    "the code that is there now",
                    remedies.restart(there),
                    case="older",
                )
    return None


@check("import.running", Section.INSIDE)
def import_running(context: Context) -> Findings:
    """Each Python program that runs has the files that a new one would import, and is not older
    than they are.
    """
    for running in context.running:
        name = running.service
        if running.trouble:
            yield info(f"the running programs of {name} were not looked at", running.trouble)
            continue
        findings = [
            finding
            for key, source in context.profile.sources.items()
            for finding in (
                *_foreign(key, source, running, context),
                _older(source, running, context),
            )
            if finding is not None
        ]
        yield from findings
        unasked = [process for process in running.processes if process.error and not process.mapped]
        if unasked:
            yield info(f"{name}: what {_who(unasked)} imports could not be asked", unasked[0].error)
        asked = [one for one in running.processes if one.cells or one.mapped]
        if asked and not findings:
            sources = ", ".join(source.package for source in context.profile.sources.values())
            programs = counted(
                len(asked), "running Python program has", "running Python programs have"
            )
            yield ok(f"{name}: {programs} what a new one would import ({sources})")
    return None
