"""`envgen explain`: the cause of a failure, from a log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click

from envgen.app import explain as failures
from envgen.app.explain import Log, PastFailure
from envgen.app.history import since_it_worked
from envgen.app.session import Session
from envgen.binding import JsonDict
from envgen.cli.common import answer, reporting
from envgen.deployment import LiveService
from envgen.errors import EnvgenError, ExitCode, UsageError
from envgen.explain import Explanation
from envgen.explain.read import LogReport, read_log
from envgen.explain.unknown import in_words
from envgen.files import state_dir
from envgen.serve.ended import with_profile_named
from envgen.text import counted, shorten, visible


@click.command()
@click.argument("what", required=False, metavar="[LOG|SERVICE]")
@reporting
def command(session: Session, what: str | None) -> int:
    """Explain why something failed: cause, evidence, fix.

    Without an argument it takes the newest failure of the project, and says which: of a build, of a
    start, or of a service that ended by itself. SERVICE is a service of the profile: its newest
    failure. LOG is a file, a crash bundle, or `-` for stdin: the log of a build, a kernel
    compilation or a server.

    If the failure is unknown, the first exception of the first failed process is shown, with the
    package that raised it, up to three deciding lines, the versions in the log, and an
    address that searches the issues of the project that raised it. Exits with 1 if a failure is
    found.

    \b
    Examples:
      envgen explain
      envgen explain serve
      envgen explain .envgen/logs/build-dev-20260101T120000.log
      docker logs -f prod-serve-1 2>&1 | envgen explain -
    """
    failure, log = _chosen(session, what)
    if not log:
        nothing = dict.fromkeys(("log", "failure", "first_exception", "clues"))
        nothing["explanations"] = []
        sentence = "no failure is known: no failed build, no crash bundle, and no service that ended by itself"
        return answer(nothing, [sentence])
    with log.file as file:
        report = read_log(file, log.known, kind=log.kind)
    explanations = _fitted(session, failure, log, report)
    failed = any(explanation.failure for explanation in explanations) or failure is not None
    reason = " ".join(str(log.about.get("reason") or "").split())
    changes = _changes(session, failure, log)
    document = {
        "log": log.name,
        "lines": report.lines,
        "skipped_bytes": report.skipped,
        "explanations": list(map(vars, explanations)),
        "first_exception": report.first and vars(report.first),
        "clues": _clues(report),
        "failure": _as_data(failure),
        "reason": reason or None,
        "changes": changes or None,
    }
    lines = []
    if failure:
        profile = f" (profile {log.about['profile']})" if "profile" in log.about else ""
        when = datetime.fromtimestamp(failure.when)
        lines.append(f"{failure.text}{profile}, {when:%Y-%m-%d %H:%M:%S}")
    lines += [f"      {shorten(reason, 400)}"] if reason else []
    lines += [f"      {changes}"] if changes else []
    lines += _text(explanations, log.name, report)
    return answer(document, lines, ExitCode.FINDINGS if failed else ExitCode.OK)


def _chosen(session: Session, what: str | None) -> tuple[PastFailure | None, Log | None]:
    """The failure that is explained (None for a log that was named), and its open log."""
    if what == "-":
        return None, Log("-", sys.stdin.buffer)
    if what is not None and Path(what).exists():
        return None, failures.open_log(Path(what))
    deployment = session.deployment() if _has_project(session) else None
    if what is not None and (not deployment or what not in deployment.profile.services):
        return None, failures.open_log(Path(what))  # it says why not
    here = Path.cwd()
    root = deployment and deployment.root
    if not root:
        with_state = (folder for folder in (here, *here.parents) if state_dir(folder).is_dir())
        root = next(with_state, None)
    if not root:
        hint = "name a log file: envgen explain LOG, or `-` for stdin"
        raise UsageError("no project and no build log is here", hint=hint)
    if failure := failures.newest(root, deployment, what):
        return failure, failure.open()
    return None, failures.log_of(LiveService(deployment, what)) if deployment and what else None


def _has_project(session: Session) -> bool:
    try:
        session.profile()
    except EnvgenError:
        if session.file or session.profile_name or session.sets:
            raise
        return False
    return True


def _fitted(
    session: Session, failure: PastFailure | None, log: Log, report: LogReport
) -> tuple[Explanation, ...]:
    """With the profile and the service in the commands of the fixes of a failure of this project,
    and what the service's image, or the release that the log names, answers about a name that was
    not found.
    """
    fitted = list(report.explanations)
    live = None
    if failure and _has_project(session):
        name = str(log.about.get("profile"))
        if name in session.loaded().project.profiles:
            session = session.with_(profile_name=name)
        profile = session.profile()
        service = failure.service or "SERVICE"
        fitted = [
            replace(known, cure=with_profile_named(known.cure, profile, service))
            for known in fitted
        ]
        live = LiveService(session.deployment(), service) if failure.service else None
    if fitted and (live or not failure):
        package = report.first.package if report.first else ""
        if reply := failures.asked(live, fitted[0].evidence, package, report.versions):
            asked = "its image" if live else "the release"
            cause = f"{fitted[0].cause} (asked {asked}: {reply})"
            fitted[0] = replace(fitted[0], cause=cause)
    return tuple(fitted)


def _changes(session: Session, failure: PastFailure | None, log: Log) -> str:
    """What changed since the service last started well: as its bundle says, or by now."""
    noted = log.about.get("changes")
    if noted or not failure or not failure.service or not _has_project(session):
        return visible(str(noted or ""))
    with suppress(EnvgenError):
        return since_it_worked(LiveService(session.deployment(), failure.service))
    return ""


def _text(explanations: Sequence[Explanation], name: str, report: LogReport) -> list[str]:
    lines = []
    for explanation in explanations:
        evidence = shorten(explanation.evidence.strip(), 400)
        mark = "note "
        if explanation.failure:
            mark = "FAIL?" if explanation.general else "FAIL "
        place = f"{name}:{explanation.line}: " if explanation.line else ""
        lines += [
            f"{mark} {explanation.cause} ({explanation.rule})",
            f"      {place}{evidence}",
            *([f"      when: {explanation.phase or 'unknown'}"] if explanation.failure else []),
            f"      fix:  {explanation.cure}",
            f"      more: {explanation.link}",
        ]
    failures = [explanation for explanation in explanations if explanation.failure]
    if not failures:
        well = "the server started; nothing failed" if report.well else "no known failure found"
        lines.insert(0, f"{name}: {well} in {counted(report.lines, 'line')}")
    if not report.well and all(failure.general for failure in failures):
        lines += [f"      {line}" for line in in_words(report.first, report.clues, name)]
    if report.skipped:
        lines.append(
            f"      {report.skipped >> 20} MiB of it were not read: only the ends of so large a log are"
        )
    return lines


def _clues(report: LogReport) -> JsonDict | None:
    hints = report.clues
    if not hints or not hints.lines:
        return None
    lines = [{"line": at, "text": text} for at, text in hints.lines]
    return {**vars(hints), "lines": lines}


def _as_data(failure: PastFailure | None) -> JsonDict | None:
    if not failure:
        return None
    return {
        "kind": failure.kind,
        "text": failure.text,
        "time": failure.when,
        "service": failure.service or None,
    }
