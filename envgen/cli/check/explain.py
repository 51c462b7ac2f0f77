"""`envgen explain`: the cause of a failure, from a log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from envgen.app import explain as failures
from envgen.app.explain import Log, PastFailure
from envgen.app.session import Session
from envgen.cli.common import answer, reporting
from envgen.errors import EnvgenError, ExitCode, UsageError
from envgen.explain import Explanation
from envgen.explain.read import LogReport, read_log
from envgen.explain.unknown import in_words
from envgen.files import state_dir
from envgen.serve.ended import in_profile
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
        report = read_log(file, log.known, kind=log.kind)
    explanations = _fitted(session, failure, log, report.explanations)
    failed = any(explanation.failure for explanation in explanations) or failure is not None
    document = {
        "log": name, "lines": report.lines, "skipped_bytes": report.skipped,
        "explanations": [explanation.data() for explanation in explanations],
        "first_exception": vars(report.first) if report.first else None, "clues": _clues(report),
        "failure": _as_data(failure), "reason": log.reason or None,
    }  # fmt: skip
    lines = [_sentence(failure, log)] if failure else []
    lines += [f"      {shorten(log.reason, 400)}"] if log.reason else []
    lines += _text(explanations, name, report)
    return answer(document, lines, ExitCode.FINDINGS if failed else ExitCode.OK)


def _sentence(failure: PastFailure, log: Log) -> str:
    service, profile, text = log.about.get("service"), log.about.get("profile"), failure.text
    if failure.kind == "start" and isinstance(service, str):
        text = visible(f"{service} failed" + (f" (profile {profile})" if isinstance(profile, str) else ""))
    return f"{text}, {datetime.fromtimestamp(failure.when).astimezone():%Y-%m-%d %H:%M:%S}"


def _chosen(session: Session, what: str | None) -> tuple[PastFailure | None, Log | None, str]:
    """The failure that is explained (None for a log that was named), its open log, and the log's name.

    Without a log, the last one is a sentence.
    """
    if what == "-":
        return None, Log(sys.stdin.buffer), "-"
    if what is not None and (Path(what).is_file() or Path(what).is_fifo() or not _is_service(session, what)):
        return None, failures.open_log(Path(what)), what
    deployment = session.deployment() if _has_project(session) else None
    here = Path.cwd()
    root = deployment.root if deployment else next((f for f in (here, *here.parents) if state_dir(f).is_dir()), None)
    if root is None:
        hint = "name a log file: envgen explain LOG, or `-` for stdin"
        raise UsageError("no project and no build log is here", hint=hint)
    if failure := failures.newest(root, deployment, what):
        return failure, failure.open(), failure.log
    container = failures.container_of_service(deployment, what) if deployment and what else None
    if deployment and container:
        return None, failures.of_container(deployment, container), failures.name_of(container)
    return None, None, _none(what or (f"profile {deployment.profile.name}" if deployment else root.name))


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


def _fitted(
    session: Session, failure: PastFailure | None, log: Log, explanations: Sequence[Explanation]
) -> tuple[Explanation, ...]:
    """With the profile and the service in the commands of the fixes, for a failure of this project."""
    service = log.about.get("service") or (failure.service if failure else "")
    if failure is None or not isinstance(service, str) or not _has_project(session):
        return tuple(explanations)
    name = log.about.get("profile")
    if isinstance(name, str) and name in session.loaded().project.profiles:
        session = session.with_(profile_name=name)
    profile = session.profile()
    return tuple(replace(known, cure=in_profile(known.cure, profile, service or "SERVICE")) for known in explanations)


def _text(explanations: Sequence[Explanation], name: str, report: LogReport) -> list[str]:
    lines = []
    for explanation in explanations:
        evidence = shorten(explanation.evidence.strip(), 400)
        lines += [
            f"{'FAIL' if explanation.failure else 'note'}  {explanation.cause} ({explanation.rule})",
            f"      {name}:{explanation.line}: {evidence}" if explanation.line else f"      {evidence}",
            f"      fix:  {explanation.cure}",
            f"      more: {explanation.link}",
        ]
    failures = [explanation for explanation in explanations if explanation.failure]
    if not failures:
        lines.insert(0, f"{name}: no known failure found in {counted(report.lines, 'line')}")
    if all(failure.general for failure in failures):
        lines += [f"      {line}" for line in in_words(report.first, report.clues, name)]
    if report.skipped:
        lines.append(f"      its first {report.skipped >> 20} MiB were not read: only the end of so large a log is")
    return lines


def _clues(report: LogReport) -> dict[str, Any] | None:
    told = report.clues
    if told is None or not told.lines:
        return None
    lines = [{"line": at, "text": text} for at, text in told.lines]
    return {"lines": lines, "versions": told.versions, "gpu": told.gpu, "search": told.search}


def _as_data(failure: PastFailure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {"kind": failure.kind, "text": failure.text, "time": failure.when, "service": failure.service or None}
