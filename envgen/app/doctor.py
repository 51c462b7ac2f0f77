"""`envgen doctor`: look at everything, on each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envgen.app import nodes, predict, weights
from envgen.app.places import all_at
from envgen.deployment import Deployment
from envgen.doctor import report, scripts
from envgen.doctor.collect import attempt, gather
from envgen.doctor.deep import examine
from envgen.doctor.model import Context, Finding, Severity, Subject, Where
from envgen.doctor.nodes import completed, finding
from envgen.doctor.report import Report
from envgen.engine.client import Engine
from envgen.engine.session import hurried
from envgen.errors import EnvgenError
from envgen.explain import cause_of
from envgen.serve import preflight
from envgen.serve.launch import CAUSE_LINES
from envgen.text import progress

BETWEEN = 15.0  # seconds for the questions to a machine that are about it and the others


@dataclass(frozen=True)
class Diagnosis:
    """What was found on one machine: that of the ``subject``."""

    subject: Subject
    report: Report

    @property
    def here(self) -> Deployment:
        return self.subject.here


def diagnose(subject: Subject, *, deep: bool) -> list[Diagnosis]:
    """A diagnosis of each machine of the service, the head's first; that one has the links between them, too."""
    each = [replace(subject, here=here) for here in all_at(subject.here, subject.service)]
    found = [Diagnosis(mine, _diagnose(mine, deep)) for mine in each]
    first = found[0]
    between = _machines(subject)
    return [replace(first, report=report.with_more(first.report, Where.NODES, between)), *found[1:]]


def joined(diagnoses: Sequence[Diagnosis]) -> Report:
    """All of it in one report."""
    return report.joined({one.here.node: one.report for one in diagnoses})


def _diagnose(subject: Subject, deep: bool) -> Report:
    """Collect, judge, and add what the project's own scripts and (with ``deep``) the packages themselves say."""
    context, extra = gather(subject)
    if context.engine is None:
        return report.examine(context, extra)
    here, service = subject.here, context.service
    if service in here.profile.services:
        running = context.container is not None and context.container.running and not context.is_throw_away
        refused = attempt(lambda: preflight.refusals(here, service, running=running))
        lacking = attempt(lambda: weights.report(here))
        causes = attempt(lambda: _causes(context, here.engine))
        context = replace(context, refused=refused or (), weights=lacking or {}, causes=causes or {})
    found = report.examine(context, extra)
    found = report.with_more(found, Where.INSIDE, scripts.from_folder(context, here.root, here.engine))
    if deep:
        progress(f"  {here.named('asking the packages themselves; imports take seconds, a kernel up to minutes')}")
        answers = [*examine(context, subject), *predict.examine(here, context)]
        for findings, _ in scripts.from_deep_folder(context, here.root, here.engine, progress):
            answers += findings
        found = report.with_more(found, Where.INSIDE, answers)
    return found


def _machines(subject: Subject) -> list[Finding]:
    """What `envgen nodes check` finds: of the service that is asked about, else of all that have `cluster`."""
    found = []
    for name, service in subject.here.profile.services.items():
        if service.cluster is None or subject.service not in (None, name):
            continue
        try:
            with hurried(BETWEEN):
                answers = nodes.check(subject.here, name)
        except EnvgenError as problem:
            first = problem.problems[0]
            failed = finding(Severity.ERROR, (), first.message, first.hint)
            answers = [completed(failed, subject.here.profile, name)]
        found += answers
    return found


def _causes(context: Context, engine: Engine) -> dict[str, str]:
    """What the logs of containers that failed say about it."""
    found = {}
    for one in (context.container, *context.others):
        if one is not None and not one.running and one.exit_code:
            lines = engine.logs(one.id, tail=CAUSE_LINES).splitlines()
            cause = cause_of(lines, exit_code=one.exit_code, service=True, oom_killed=one.oom_killed)
            if cause is not None:
                found[one.name] = cause.summary
    return found
