"""`envgen doctor`: run all checks, on each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envgen.app.cluster.machines import all_machines
from envgen.app.history import since_it_worked
from envgen.bench.trace import proof
from envgen.deployment import Deployment, LiveService
from envgen.doctor import report
from envgen.doctor.collect import gather, or_none
from envgen.doctor.model import Context, Subject
from envgen.doctor.report import Report
from envgen.engine.values import Container
from envgen.serve.ended import last_ends


@dataclass(frozen=True)
class Diagnosis:
    """The report of one machine, that of the ``subject``."""

    subject: Subject
    report: Report

    @property
    def deployment(self) -> Deployment:
        return self.subject.deployment


def diagnose(subject: Subject) -> list[Diagnosis]:
    """A diagnosis of each machine of the service, the head's first."""
    diagnoses = []
    for deployment in all_machines(subject.deployment, subject.service):
        one = replace(subject, deployment=deployment)
        diagnoses.append(Diagnosis(one, _diagnose(one)))
    return diagnoses


def joined(diagnoses: Sequence[Diagnosis]) -> Report:
    """All diagnoses in one report."""
    return report.joined({one.deployment.node: one.report for one in diagnoses})


def _diagnose(subject: Subject) -> Report:
    """Collect and judge."""
    context = gather(subject)
    if context.engine is None:
        return report.examine(context)
    deployment = subject.deployment
    if context.service in deployment.profile.services:
        service = LiveService(deployment, context.service)
        changes = or_none(lambda: since_it_worked(service, asks=True))
        container = context.container
        ran = tuple(proof(service, container)) if container else ()
        context = replace(context, changes=changes or "", ran=ran)
    there = _described(context)
    ended = or_none(lambda: last_ends(deployment.engine, there))
    return report.examine(replace(context, ended=ended or {}))


def _described(context: Context) -> list[Container]:
    """The containers of the profile's services."""
    services = context.profile.services
    return [
        one
        for one in (context.container, *context.others)
        if one is not None and one.service in services
    ]
