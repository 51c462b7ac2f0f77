"""`envgen up`: check the services of a profile, ask their vLLM, start them, and wait until each is
ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from envgen.app import start
from envgen.app.start import Agree, Checked, StartOptions
from envgen.deployment import Deployment, known_service
from envgen.engine.endpoint import require_plugin
from envgen.errors import EngineError, EnvgenError, Problem, UsageError
from envgen.profile.model import Profile
from envgen.serve import memory
from envgen.serve.differences import NotReplaced
from envgen.serve.launch import Started
from envgen.serve.preflight import PreflightError


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
    passed = _all_of({name: partial(check, deployment, name) for name in names})
    _check_memory(deployment, passed)
    return _all_of({one.service: partial(predicted, one) for one in passed}) if predict else passed


def check(deployment: Deployment, service: str) -> Checked:
    """Check everything that a start needs, on one machine or several. PreflightError with every
    problem.
    """
    if deployment.profile.services[service].cluster is not None:
        from envgen.app.cluster.start import (
            check as cluster_check,
        )  # seldom, and a tenth of a second

        require_plugin("compose")
        return cluster_check(deployment, service)  # this machine may have no engine
    return start.check(deployment, service)


def _check_memory(deployment: Deployment, passed: Sequence[Checked]) -> None:
    """PreflightError if each of the services that start would fit into the memory, but not all of
    them.
    """
    starting = [one for one in passed if not one.running and len(one.machines) == 1]
    needs = {
        one.service: need.bytes
        for one in starting
        if (need := deployment.profile.services[one.service].needs_memory)
    }
    if len(needs) < 2 or not deployment.is_local:
        return
    if problems := memory.too_little(sum(needs.values())):
        names = ", ".join(needs)
        raise PreflightError(
            names, (replace(problems[0], message=f"together, {problems[0].message}"),)
        )


def predicted(checked: Checked) -> Checked:
    """``checked`` with notes on what its vLLM would choose. PreflightError if vLLM refuses the
    settings.
    """
    if checked.running and not checked.differing:
        return checked
    from envgen.app.predict import ask_release  # not for a service that runs

    replaced = checked.running is not None
    notes = ask_release(checked.deployment, checked.service, replaced=replaced)
    return replace(checked, notes=(*checked.notes, *notes))


def _all_of(asked: Mapping[str, Callable[[], Checked]]) -> tuple[Checked, ...]:
    """Ask for each service. PreflightError with the problems of all; services with equal problems
    share them.
    """
    passed, refused = list[Checked](), dict[str, PreflightError]()
    for name, ask in asked.items():
        try:
            passed.append(ask())
        except PreflightError as error:
            refused[name] = error
    if refused:
        reasons: dict[tuple[Problem, ...], list[str]] = {}
        for name, refusal in refused.items():
            reasons.setdefault(tuple(refusal.problems[1:]), []).append(name)
        raised = next(iter(refused.values()))
        raised.only_lacking = all(refusal.only_lacking for refusal in refused.values())
        raised.problems = tuple(
            problem
            for why, who in reasons.items()
            for problem in (
                Problem(f"{', '.join(who)} {'was' if len(who) == 1 else 'were'} not started:"),
                *why,
            )
        )
        raise raised
    return tuple(passed)


def start_all(
    checked: Sequence[Checked], agree: Agree, options: StartOptions
) -> Iterator[tuple[Checked, Started]]:
    """Start one service after the other; yield each when it is ready. If one fails, the others
    still start.

    ``agree`` is asked before a running one is replaced. The error at the end names all that failed.
    """
    failed: dict[str, EnvgenError] = {}
    for service in checked:
        try:
            started = service.start(agree, options)
        except EnvgenError as error:
            if len(checked) == 1 or isinstance(error, EngineError):
                raise
            failed[service.service] = error
        else:
            yield service, started
    if failed:
        # A running service that was left alone was not to be started, and may still have failed the
        # checks.
        wanted = [
            one.service
            for one in checked
            if one.starts(options) and not isinstance(failed.get(one.service), NotReplaced)
        ]
        lost = [name for name in wanted if name in failed]
        summary = []
        if lost and len(wanted) > 1:
            summary = [
                Problem(f"{len(lost)} of {len(wanted)} services did not start: {', '.join(lost)}")
            ]
        raised = next(iter(failed.values()))
        raised.problems = (
            *summary,
            *(problem for error in failed.values() for problem in error.problems),
        )
        raise raised
