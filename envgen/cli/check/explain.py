"""`envgen explain`: the cause of a failure, from a log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from envgen.app import explain as failures
from envgen.app.explain import Log, PastFailure
from envgen.app.session import Session
from envgen.cli.common import answer, reporting
from envgen.errors import EnvgenError, ExitCode, UsageError
from envgen.explain import Explanation, likeliest
from envgen.explain.read import LogReport, read_log
from envgen.profile.model import Phases
from envgen.serve.ended import in_profile
from envgen.serve.phases import Phase, StartProgress
from envgen.text import counted, shorten, visible


@click.command()
@click.argument("what", required=False, metavar="[LOG|SERVICE]")
@reporting
def command(session: Session, what: str | None) -> int:
    """Explain why something failed: cause, evidence, fix.

    Without an argument it takes the newest failure of the project, and says which: of a build, of a start, or of a
    service that ended by itself. SERVICE is a service of the profile: its newest failure. LOG is a file, a crash
    bundle, or `-` for stdin: the log of a build, a kernel compilation or a server.

    If the failure is unknown, the first exception of the first failed process is shown, with the package that raised
    it, up to three deciding lines, the versions and the GPU in the log, and an address that searches the issues of the
    project that raised it. Exits with 1 if a failure is found.

    \b
    Examples:
      envgen explain
      envgen explain serve
      envgen explain .envgen/logs/build-dev-20260101T120000.log
      docker logs -f prod-serve-1 2>&1 | envgen explain -
    """
    failure, log, name = _chosen(session, what)
    if log is None:
        return answer(
            {"log": None, "failure": None, "explanations": [], "first_exception": None, "clues": None}, [name]
        )
    with log.file as file:
        report = read_log(file, log.known, kind=log.kind, phases=StartLine())
    found = _fitted(session, failure, log, _with_proof(report, log))
    failed = any(one.failure for one in found) or failure is not None
    document = {
        "log": name, "lines": report.lines, "skipped_bytes": report.skipped,
        "explanations": [one.data() for one in found], "first_exception": _raised(report),
        "clues": _clues(report),
        "failure": _as_data(failure), "reason": log.reason or None,
    }  # fmt: skip
    lines = [f"{_sentence(failure, log)}, {failures.when_of(failure)}"] if failure else []
    lines += [f"      {shorten(log.reason, 400)}"] if log.reason else []
    lines += _text(found, name, report)
    return answer(document, lines, ExitCode.FINDINGS if failed else ExitCode.OK)


def _sentence(failure: PastFailure, log: Log) -> str:
    service, profile = log.about.get("service"), log.about.get("profile")
    if failure.kind != "start" or not isinstance(service, str):
        return failure.text
    return visible(f"{service} failed" + (f" (profile {profile})" if isinstance(profile, str) else ""))


class StartLine:
    """What a server was doing at each line of its log."""

    def __init__(self) -> None:
        self._progress = StartProgress(Phases())
        self._begun = self.done = False

    def feed(self, line: str) -> str:
        """Read a line; returns what the server was doing then."""
        if "Application startup complete" in line:
            self.done = True
            return "serving"
        self._progress.feed(line)
        self._begun = self._begun or "API server version" in line or self._progress.phase is not Phase.START
        return self._progress.words() if self._begun else ""  # of an excerpt, the phase is unknown


def _chosen(session: Session, what: str | None) -> tuple[PastFailure | None, Log | None, str]:
    """The failure that is explained (None for a log that was named), its open log, and the log's name.

    Without a log, the last one is a sentence.
    """
    if what == "-":
        return None, Log(sys.stdin.buffer), "-"
    if what is not None and (Path(what).is_file() or Path(what).is_fifo() or not _is_service(session, what)):
        return None, failures.open_log(Path(what)), what
    if what is None and not _has_project(session):
        folder = failures.project_of(Path.cwd())
        if folder is None:
            hint = "name a log file: envgen explain LOG, or `-` for stdin"
            raise UsageError("no project and no build log is here", hint=hint)
        failure = failures.of_files(folder)
        return (failure, failures.opened(failure), failure.name) if failure else (None, None, _none(folder.name))
    failure = failures.newest(session, what)
    deployment = session.deployment()
    if failure is not None:
        return failure, failures.opened(failure, deployment), failure.name
    container = failures.container_of_service(deployment, what) if what else None
    if container is not None:
        return None, failures.of_container(deployment, container), f"log of {container.name}"
    return None, None, _none(what or f"profile {deployment.profile.name}")


def _none(of: str) -> str:
    return f"no failure of {of} is known: no failed build, no crash bundle, and no service that ended by itself"


def _has_project(session: Session) -> bool:
    try:
        session.profile()
    except EnvgenError:
        if session.file or session.profile_name or session.sets:
            raise
        return False
    return True


def _is_service(session: Session, name: str) -> bool:
    """Whether ``name`` is a service. UsageError if it is neither that nor looks like a file."""
    if "/" in name or name.endswith((".log", ".txt", ".gz")) or not _has_project(session):
        return False
    profile = session.profile()
    if name not in profile.services and Path(name).exists():
        return False
    if name not in profile.services:
        known = ", ".join(profile.services)
        raise UsageError(f"{name} is neither a file nor a service of profile {profile.name}", hint=f"services: {known}")
    return True


def _with_proof(report: LogReport, log: Log) -> tuple[Explanation, ...]:
    """What the log says, after what is known beside it: that it was killed for its memory, or its exit code."""
    if not log.known.failed:
        return report.explanations
    best = likeliest(report.explanations, log.known, kind="build" if log.kind == "build" else "serve")
    if best is None or best in report.explanations:
        return report.explanations
    return (best, *report.explanations)


def _fitted(
    session: Session, failure: PastFailure | None, log: Log, found: Sequence[Explanation]
) -> tuple[Explanation, ...]:
    """With the profile and the service in the commands of the fixes, for a failure of this project."""
    service = log.about.get("service") or (failure.service if failure else "")
    if failure is None or not isinstance(service, str) or not _has_project(session):
        return tuple(found)
    name = log.about.get("profile")
    if isinstance(name, str) and name in session.loaded().project.profiles:
        session = session.with_(profile_name=name)
    profile = session.profile()
    return tuple(replace(one, cure=in_profile(one.cure, profile, service or "SERVICE")) for one in found)


def _text(found: Sequence[Explanation], name: str, report: LogReport) -> list[str]:
    lines = []
    for one in found:
        lines += [
            f"{'FAIL' if one.failure else 'note'}  {one.cause} ({one.rule})",
            f"      {name}:{one.line}: {shorten(one.evidence.strip(), 400)}" if one.line else f"      {one.evidence}",
            f"      fix:  {one.cure}",
            f"      more: {one.link}",
        ]
    known = [one for one in found if one.failure]
    if not known:
        lines.insert(0, f"{name}: no known failure found in {counted(report.lines, 'line')}")
    if all(one.general for one in known):
        lines += [f"      {line}" for line in _first(report, name)]
    if report.skipped:
        lines.append(f"      its first {report.skipped >> 20} MiB were not read: only the end of so large a log is")
    return lines


def _first(report: LogReport, name: str) -> list[str]:
    """The first exception and the other deciding lines, versions and an address, for a log without a rule."""
    first, told, lines = report.first, report.clues, list[str]()
    if first is not None:
        where = f" of {first.process}" if first.process else ""
        lines.append(f"first exception{where}: {name}:{first.line}: {first.text}")
        lines += [f"raised from: {first.root}"] if first.root else []
        lines += [f"in: {first.component}"] if first.component else []
        lines += [f"while: {report.phase}"] if report.phase else []
    if told is not None:
        lines += [f"{name}:{at}: {text}" for at, text in told.lines if not first or at != first.line]
        shown = [f"{package} {version}" for package, version in told.versions.items()]
        shown += [f"GPU {told.gpu}"] if told.gpu else []
        lines += [f"the log shows: {', '.join(shown)}"] if shown else []
        lines += [f"search: {told.search}"] if told.search else []
    return [visible(line) for line in lines]


def _clues(report: LogReport) -> dict[str, Any] | None:
    told = report.clues
    if told is None or not told.lines:
        return None
    lines = [{"line": at, "text": text} for at, text in told.lines]
    return {"lines": lines, "versions": told.versions, "gpu": told.gpu, "search": told.search}


def _raised(report: LogReport) -> dict[str, Any] | None:
    first = report.first
    return {**vars(first), "phase": report.phase} if first else None


def _as_data(failure: PastFailure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {"kind": failure.kind, "text": failure.text, "time": failure.when, "service": failure.service or None}
