"""`envgen up`: start services, and wait until they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envgen.cli.common import flag, reporting, services_argument, variant_option
from envgen.cli.run.common import timeout_option
from envgen.errors import UsageError

if TYPE_CHECKING:
    from envgen.app.session import Session


@click.command()
@services_argument
@reporting
@variant_option
@flag("-y, --yes", "Make what is missing (lock, image, weights) without asking.")
@flag("--build, build_first", "Build the image first if it is not up to date.")
@flag("--no-wait", "Return as soon as the containers are created.")
@timeout_option
@flag("--no-predict", "Skip asking vLLM which kernels it would choose.")
@flag("--recreate", "Make a new container, even if nothing differs; caches stay.")
@flag("--stay", "Keep watching; exit with 5 if it ends by itself (for a systemd unit).")
def command(
    session: Session,
    names: tuple[str, ...],
    yes: bool,
    build_first: bool,
    no_wait: bool,
    timeout: int | None,
    no_predict: bool,
    recreate: bool,
    stay: bool,
) -> int:
    """Start each SERVICE (default: all of the profile), and wait until it answers.

    Checks first that the image is current, that mounted checkouts exist, that ports are free, and
    that memory, GPU and weights are available. It also asks vLLM which kernels it would choose
    (`envgen predict`). If a check fails, nothing starts (exit code 6).

    If only the lock, the image or the weights are missing, it lists what is missing and how large
    it is, asks once, and makes all of it: weights download while the image is built. After an
    interruption, the same command continues. With --build and a changed version, the same question
    comes first, also for the running services that the new image would replace.

    A service is ready when it lists the model, answers a prompt (and a chat and a tool call, if it
    supports them), and the log matches `ready`. If it fails, its log and state are saved in a crash
    bundle, and its container is removed (exit code 5). Ctrl-C stops the waiting, not the service.

    A running service is left alone. If its settings differ from the profile, the differences are
    shown, and it is replaced only with --recreate or after you confirm (otherwise exit code 6).
    --recreate always makes a new container.

    For a service with `cluster`, the checks of `envgen nodes check` run first; then it starts on
    all its machines. If one machine fails, a crash bundle is saved, and the service is stopped on
    all.

    --stay keeps watching, and ends with 0 when the service is stopped on purpose. If the service
    ends by itself, and Docker does not restart it, a crash bundle is saved (exit code 5). With
    `cluster`, all machines are watched: when a rank ends, for whatever reason, all are stopped
    (exit code 5), and only a systemd unit starts them again.

    \b
    Examples:
      envgen up serve --yes
      envgen up --build dev serve
      envgen up serve --variant prod
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    if stay and (len(names) != 1 or no_wait):
        raise UsageError("--stay is for one service, without --no-wait")
    from envgen.app.start import StartOptions
    from envgen.cli.run import starting

    options = StartOptions(not no_wait, recreate, timeout)
    return starting.up(
        session, names, options, yes=yes, build_first=build_first, predict=not no_predict, stay=stay
    )
