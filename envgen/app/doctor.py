"""`envgen doctor`: look at everything; and with --fix: show the plan, ask, act."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.app import nodes, predict, weights
from envgen.app.places import all_at
from envgen.deployment import Deployment
from envgen.doctor import fix, report, scripts
from envgen.doctor.collect import attempt, gather
from envgen.doctor.deep import examine
from envgen.doctor.fix import Fix
from envgen.doctor.model import Context, Finding, Severity, Subject, Where
from envgen.doctor.report import Report
from envgen.engine.client import Engine
from envgen.engine.session import hurried
from envgen.errors import EnvgenError
from envgen.explain import cause_of
from envgen.jitcache.place import make_query
from envgen.jitcache.service import JitCache
from envgen.profile.load import LOCAL_NAME
from envgen.render import environment as promised
from envgen.serve import preflight
from envgen.serve.launch import CAUSE_LINES
from envgen.text import counted, progress

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
                answers = nodes.check(subject.here.profile, subject.here.root, name)
        except EnvgenError as problem:
            first = problem.problems[0]
            failed = nodes.finding(Severity.ERROR, (), first.message, first.hint)
            answers = [nodes.completed(failed, subject.here.profile, name)]
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


def apply_fixes(diagnoses: Sequence[Diagnosis], *, dry_run: bool, agree: Callable[[int], bool]) -> bool:
    """Do what is safe. True when something was done, so that it is worth looking again.

    ``agree`` is asked with the number of steps. A step that fails is reported; the others still run.
    """
    steps = [step for one in diagnoses for step in plan(one)]
    for line in moved(diagnoses[0].subject):
        progress(f"  {line}")
    if not steps:
        progress("  nothing here that --fix can fix; each finding names its own command")
        return False
    for number, step in enumerate(steps, 1):
        progress(f"  {number}. {step.title}")
        progress(f"     {step.how}")
    if dry_run or not agree(len(steps)):
        return False
    for number, step in enumerate(steps, 1):
        try:
            step.act()
            progress(f"  {number}. done")
        except EnvgenError as problem:
            progress(f"  {number}. failed: {problem}")
    return True


def plan(one: Diagnosis) -> list[Fix]:
    """All steps on one machine."""
    context = one.report.context
    if context.engine is None:
        return []
    here = one.here
    steps = [*fix.plan(context, one.report.findings, here.engine, here.root), *_stale(here)]
    return [replace(step, title=here.named(step.title)) for step in steps]


def _stale(here: Deployment) -> list[Fix]:
    """Modules that are proven stale, by the cache's own plan, guard and act."""
    if not any(source.package == "flashinfer" for source in here.profile.sources.values()):
        return []
    cache, causes = JitCache(here), {"stale": True}
    # What can't be asked: no cache, or one that is being built. `cache list` shows it.
    found = attempt(lambda: cache.clear(make_query(), dry_run=True, causes=causes))
    if found is None or not found.modules:
        return []
    names = ", ".join(f"{one.version} {one.name}" for one in found.modules)

    def clear() -> None:
        done = cache.clear(make_query(), causes=causes)
        if done.errors:
            raise EnvgenError(f"not all was cleared: {done.errors[0]}")

    title = f"clear {counted(len(found.modules), 'stale JIT module')}: {names}"
    return [Fix(title, "envgen cache clear --stale", clear)]


def moved(subject: Subject) -> list[str]:
    """Checkouts missing from their configured path but found in exactly one place nearby: the lines to write."""
    machine = promised.compose_environment(subject.here.profile, subject.here.root)
    lines: list[str] = []
    for name, source in subject.here.profile.mounted_sources.items():
        configured = Path(machine.get(promised.checkout_variable(name), ""))
        if _is_checkout(configured, source.package):
            continue
        candidates = nearby(name, source.package, [subject.here.root, *configured.parents[:1]])
        if len(candidates) != 1:
            continue
        place = json.dumps(str(candidates[0]))  # a YAML scalar too
        lines += [
            f"{name} is not in {configured}, but in {candidates[0]}. Put this into {LOCAL_NAME}, then run `envgen up`:",
            "  profiles:",
            f"    {subject.here.profile.name}:",
            f"      sources: {{{name}: {{origin: {{checkout: {place}}}}}}}",
        ]
    return lines


def nearby(name: str, package: str, places: list[Path]) -> list[Path]:
    """Checkouts of ``package`` in these folders, above them and beside them, under the package's usual names."""
    found: dict[Path, None] = {}
    for place in places:
        for folder in (place, place.parent, place / "checkouts", place / "src"):
            for called in dict.fromkeys((name, package, package.replace("_", "-"))):
                candidate = folder / called
                if _is_checkout(candidate, package):
                    found[candidate.resolve()] = None
    return list(found)


def _is_checkout(folder: Path, package: str) -> bool:
    built = any((folder / name).is_file() for name in ("pyproject.toml", "setup.py"))
    return built and (folder / package / "__init__.py").is_file()
