"""`envgen up`: check the services of a profile, ask their vLLM, start them, and wait until each is
ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from envgen.app import start
from envgen.app.start import Agree, Checked, StartOptions
from envgen.deployment import Deployment, LiveService, known_service
from envgen.engine.endpoint import require_plugin
from envgen.errors import EngineError, EnvgenError, Problem, UsageError
from envgen.profile.model import Profile
from envgen.serve import memory
from envgen.serve.differences import NotReplaced
from envgen.serve.preflight import PreflightError
from envgen.serve.start import StartResult


def main_service(profile: Profile) -> str:
    """The default service. UsageError if there is none."""
    if not profile.services:
        hint = "another profile? add --profile NAME"
        raise UsageError(f"profile {profile.name} has no services", hint=hint)
    return profile.default_service


def check_all(
    deployment: Deployment, names: Sequence[str], *, predict: bool = True
) -> tuple[Checked, ...]:
    """Check the services ``names`` (default: all). PreflightError with the problems of all of them.

    ``predict``: if all pass, ask the vLLM of each what it would choose, which takes seconds.
    """
    names = tuple(dict.fromkeys(names)) or tuple(deployment.profile.services)
    if not names:
        main_service(deployment.profile)
    for name in names:  # before any is looked at
        known_service(deployment.profile, name)
    passed = _all_of({name: partial(check, LiveService(deployment, name)) for name in names})
    _check_memory(deployment, passed)
    if not predict:
        return passed
    return _all_of({one.service.name: partial(predicted, one) for one in passed})


def check(service: LiveService) -> Checked:
    """Check everything that a start needs, on one machine or several. PreflightError with every
    problem.
    """
    if service.described.cluster is None:
        return start.check(service)
    from envgen.app.cluster import start as cluster  # imported here: costs a tenth of a second

    require_plugin("compose")  # this machine may have no engine
    return cluster.check(service)


def _check_memory(deployment: Deployment, passed: Sequence[Checked]) -> None:
    """PreflightError if each of the services that start would fit into the memory, but not all of
    them.
    """
    needs = {}
    for one in passed:
        needed = one.service.described.needs_memory
        if needed and not one.running and one.service.described.cluster is None:
            needs[one.service.name] = needed.bytes
    if len(needs) < 2 or not deployment.is_local:
        return
    for problem in memory.too_little(sum(needs.values())):
        together = replace(problem, message=f"together, {problem.message}")
        raise PreflightError(", ".join(needs), (together,))


def predicted(checked: Checked) -> Checked:
    """``checked`` with notes on what its vLLM would choose. PreflightError if vLLM refuses the
    settings.
    """
    if checked.running and not checked.differing:
        return checked
    from envgen.app.predict import ask_release  # not for a service that runs

    notes = ask_release(checked.service, replaced=checked.running is not None)
    return replace(checked, notes=(*checked.notes, *notes))


def _all_of(asked: Mapping[str, Callable[[], Checked]]) -> tuple[Checked, ...]:
    """Ask for each service. PreflightError with the problems of all; services with equal problems
    share them.
    """
    passed = []
    refused = []
    reasons = dict[tuple[Problem, ...], list[str]]()
    for name, ask in asked.items():
        try:
            passed.append(ask())
        except PreflightError as error:
            refused.append(error)
            reasons.setdefault(tuple(error.problems[1:]), []).append(name)
    if not refused:
        return tuple(passed)
    raised = refused[0]
    raised.only_lacking = all(error.only_lacking for error in refused)
    problems = []
    for why, names in reasons.items():
        were = "was" if len(names) == 1 else "were"
        problems += [Problem(f"{', '.join(names)} {were} not started:"), *why]
    raised.problems = tuple(problems)
    raise raised


def start_one(
    service: LiveService, options: StartOptions, *, predict: bool = False
) -> tuple[Checked, StartResult]:
    """Start a service as its deployment says, also in place of what runs, and wait until it is
    ready. PreflightError or ServiceError where it can't be.
    """
    checked = check(service)
    if predict:
        checked = predicted(checked)
    return checked, checked.start(lambda _question: True, options)


def start_all(
    checked: Sequence[Checked], agree: Agree, options: StartOptions
) -> Iterator[tuple[Checked, StartResult]]:
    """Start one service after the other; yield each when it is ready. If one fails, the others
    still start.

    ``agree`` is asked before a running one is replaced. The error at the end names all that failed.
    """
    failed = {}
    for one in checked:
        try:
            started = one.start(agree, options)
        except EnvgenError as error:
            if len(checked) == 1 or isinstance(error, EngineError):
                raise
            failed[one.service.name] = error
        else:
            yield one, started
    if failed:
        raise _all_failures(checked, failed, options)


def _all_failures(
    checked: Sequence[Checked], failed: Mapping[str, EnvgenError], options: StartOptions
) -> EnvgenError:
    """One error for all services that failed. A running service that was left alone was not to be
    started, and may still have failed the checks.
    """
    wanted = []
    for one in checked:
        name = one.service.name
        if one.starts(options) and not isinstance(failed.get(name), NotReplaced):
            wanted.append(name)
    lost = [name for name in wanted if name in failed]
    problems = [problem for error in failed.values() for problem in error.problems]
    if lost and len(wanted) > 1:
        summary = f"{len(lost)} of {len(wanted)} services did not start: {', '.join(lost)}"
        problems.insert(0, Problem(summary))
    raised = next(iter(failed.values()))
    raised.problems = tuple(problems)
    return raised
