"""The error for a start that failed, and its crash bundle."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from envgen.app.history import NOTHING, since_it_worked
from envgen.deployment import LiveService
from envgen.errors import ServiceError
from envgen.serve.ended import SHOWN, StartFailure, cause_in, with_profile_named
from envgen.serve.start import Say
from envgen.text import progress, shorten

LAST_LINES = 5  # of a log that tells nothing of its end
LONGEST_SHOWN = 2000  # characters of each


def failed(
    service: LiveService,
    failure: StartFailure,
    *,
    machines: Sequence[LiveService] = (),
    verdict: str = "is not ready",
    hint: str = "",
    say: Say = progress,
    found: Mapping[str, str] = NOTHING,
) -> ServiceError:
    """Save a crash bundle and return the error to raise. Call it before the container is removed.

    ``machines``: all that the service runs on, if there are several. ``hint``: the fix if the log
    shows no cause. ``found``: what the start found on this machine.
    """
    from envgen.app import bundle  # with doctor, and all of its checks

    deployment = service.deployment
    name = service.name
    say(f"  {name}: {failure.reason}; saving a crash bundle")
    cause, lines = cause_in(deployment, failure)
    ranks = machines or (service,)
    changes = [line for one in ranks if (line := since_it_worked(one, asks=True, before=found))]
    kept = bundle.save(ranks, failure, cause.cause, deployment.node, changes)
    text = f"{name} {verdict}: {failure.reason}"
    if cause.rule:
        text += f"; cause: {cause.cause}"
    shown = list(cause.clues)
    if cause.evidence:
        shown = [shorten(cause.evidence, SHOWN)]
    elif not shown:
        shown = ["its last lines:", *(lines[-LAST_LINES:] or ["(none)"])]
    shown = [shorten(line, LONGEST_SHOWN) for line in shown]
    shown += changes
    if kept:
        shown.append(f"crash bundle: {kept}")
        shown.append(f"whole log: `tar -xOzf {shlex.quote(kept)} --wildcards '*server.log'`")
    fix = with_profile_named(cause.cure, service.profile, name) or failure.hint or hint
    return ServiceError("\n  ".join([text, *shown]), hint=fix or _closer_look(service, failure))


def _closer_look(service: LiveService, failure: StartFailure) -> str:
    """The command that shows more, where no cause is known."""
    container = failure.container
    if container is not None and container.state == "paused":
        return f"docker unpause {container.name}"
    if container is not None and not container.running:
        return ""  # it would end again
    return f"{service.hint('up')} --no-wait keeps it running for a closer look"
