"""What follows when a start fails, as steps: the reason, the crash bundle, the clean-up, the error."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence

from envgen.deployment import Deployment
from envgen.errors import EngineError, EnvgenError, ProcessError, RefusedError, ServiceError
from envgen.serve.ended import SHOWN, StartFailure, cause_in, in_profile
from envgen.serve.launch import Begun, Launcher, Say
from envgen.text import progress, shorten

Failed = Callable[[StartFailure], EnvgenError]
LAST_LINES = 5  # of a log that tells nothing of its end
LONGEST_SHOWN = 2000  # characters of each


def failed(
    deployment: Deployment,
    service: str,
    failure: StartFailure,
    *,
    machines: Sequence[Deployment] = (),
    verdict: str = "is not ready",
    hint: str = "",
    say: Say = progress,
) -> ServiceError:
    """Save a crash bundle and return the error to raise. Call it before the container is removed.

    ``machines``: all that the service runs on, if there are several. ``hint``: the fix if the log
    shows no cause.
    """
    from envgen.app import bundle  # with doctor, and all of its checks

    profile, container = deployment.profile, failure.container
    say(f"  {service}: {failure.reason}; saving a crash bundle")

    cause, lines = cause_in(deployment, failure)
    kept = bundle.save(machines or (deployment,), service, failure, cause.cause, deployment.node)
    text = f"{service} {verdict}: {failure.reason}" + (
        f"; cause: {cause.cause}" if cause.rule else ""
    )
    shown = [shorten(cause.evidence, SHOWN)] if cause.evidence else []
    if not shown:
        last = ["its last lines:", *(lines[-LAST_LINES:] or ["(none)"])]
        shown = [shorten(line, LONGEST_SHOWN) for line in cause.clues or last]
    if kept:
        shown.append(f"crash bundle: {kept}")
        shown.append(f"whole log: `tar -xOzf {shlex.quote(kept)} --wildcards '*server.log'`")
    again = (
        f"envgen up {service} {profile.chosen_variant} --no-wait keeps it running for a closer look"
    )
    if container is not None and not container.running:
        again = ""  # it would end again
    if container is not None and container.state == "paused":
        again = f"docker unpause {container.name}"
    hint = in_profile(cause.cure, profile, service) or failure.hint or hint or again
    return ServiceError("\n  ".join([text, *shown]), hint=hint)


def begin(launcher: Launcher, on_failure: Failed) -> Begun:
    """Create the container. If that fails, or on Ctrl-C, everything that it has created is removed
    again.
    """
    with launcher.alone():
        before = frozenset(one.id for one in launcher.existing())

        def clean_up() -> None:
            launcher.remove([one.id for one in launcher.existing() if one.id not in before])

        try:
            with _steps(launcher, on_failure, clean_up):
                return launcher.create(before)
        except KeyboardInterrupt:
            with contextlib.suppress(EngineError):
                clean_up()
            raise


@contextlib.contextmanager
def cleaned_up(launcher: Launcher, begun: Begun, on_failure: Failed) -> Iterator[None]:
    """If what follows fails, the container that this start created is removed.

    One that has taken its place stays. So does its own on Ctrl-C: only the waiting ends.
    """

    def clean_up() -> None:
        if begun.created:
            with launcher.alone():
                launcher.remove([begun.container.id])

    with _steps(
        launcher, lambda failure: on_failure(launcher.unless_replaced(begun, failure)), clean_up
    ):
        yield


@contextlib.contextmanager
def _steps(launcher: Launcher, on_failure: Failed, clean_up: Callable[[], None]) -> Iterator[None]:
    """On failure: the error with its crash bundle, then the clean-up, then the error is raised."""
    try:
        yield
        return
    except StartFailure as failure:
        raised = on_failure(failure)
    except ProcessError as error:
        raised = ServiceError(f"{launcher.name} was not started: {error}")
    except (ServiceError, RefusedError) as error:
        raised = error
    with contextlib.suppress(EngineError):
        clean_up()
    raise raised from None
