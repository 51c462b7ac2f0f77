"""`envgen up`: start services, and wait until they answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from envgen.app.session import VARIANT_LABEL, Session
from envgen.app.stage import PLAIN
from envgen.app.start import Checked, StartOptions
from envgen.app.stay import notify_ready
from envgen.app.up import check_all, start_all
from envgen.cli.common import answer, ask, reporting, variant_option, wants_json, warn_of_unused
from envgen.cli.run.common import print_started, started_document, timeout_option
from envgen.errors import EnvgenError, Problem, UsageError
from envgen.live import moving
from envgen.serve.preflight import PreflightError
from envgen.text import progress


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@reporting
@variant_option
@click.option("-y", "--yes", is_flag=True, help="Make what is missing (lock, image, weights) without asking.")
@click.option("--build", "build_first", is_flag=True, help="Build the image first if it is not up to date.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the containers are created.")
@timeout_option
@click.option("--no-predict", is_flag=True, help="Skip asking vLLM which kernels it would choose.")
@click.option("--recreate", is_flag=True, help="Make a new container, even if nothing differs; caches stay.")
@click.option("--stay", is_flag=True, help="Keep watching; exit with 5 if it ends by itself (for a systemd unit).")
def command(
    session: Session, names: tuple[str, ...], yes: bool, build_first: bool, no_wait: bool, timeout: int | None,
    no_predict: bool, recreate: bool, stay: bool,
) -> int:  # fmt: skip
    """Start each SERVICE (default: all of the profile), and wait until it answers.

    Checks first that the image is current, that mounted checkouts exist, that ports are free, and that memory, GPU and
    weights are available. It also asks vLLM which kernels it would choose (`envgen predict`). If a check fails, nothing
    starts (exit code 6).

    If only the lock, the image or the weights are missing, it lists what is missing and how large it is, asks once,
    and makes all of it: weights download while the image is built. After an interruption, the same command continues.

    A service is ready when it lists the model, answers a prompt (and a chat and a tool call, if it supports them), and
    the log matches `ready`. If it fails, its log and state are saved in a crash bundle, and its container is removed
    (exit code 5). Ctrl-C stops the waiting, not the service.

    A running service is left alone. If its settings differ from the profile, the differences are shown, and it is
    replaced only with --recreate or after you confirm (otherwise exit code 6). --recreate always makes a new container.

    For a service with `cluster`, the checks of `envgen nodes check` run first; then it starts on all its machines. If
    one machine fails, a crash bundle is saved, and the service is stopped on all.

    --stay keeps watching, and ends with 0 when the service is stopped on purpose. If the service ends by itself, and
    Docker does not restart it, a crash bundle is saved (exit code 5). With `cluster`, all machines are watched: when a
    rank ends, for whatever reason, all are stopped (exit code 5), and only a systemd unit starts them again.

    \b
    Examples:
      envgen up serve --yes
      envgen up --build dev serve
      envgen up serve --variant cutlass
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    if stay and (len(names) != 1 or no_wait):
        raise UsageError("--stay is for one service, without --no-wait")
    warn_of_unused(session)
    if build_first:
        from envgen.app.provision import to_build
        from envgen.cli.build.build import provide

        provide(session, to_build(session, names, yes=yes))
    checked = _checked(session, names, yes=yes, predict=not no_predict)
    options = StartOptions(not no_wait, recreate, timeout)
    documents: list[dict[str, Any]] = []
    try:
        with moving("starting"):
            for one, started in start_all(checked, ask, options):
                if not (no_wait or started.already) and len(one.machines) == 1:
                    from envgen.app.provision import remember_modules  # a start that has nothing to do needs neither

                    remember_modules(one.deployment)
                documents.append(started_document(one.deployment.profile, one.service, started, waited=not no_wait))
                if not wants_json():
                    print_started(one.deployment.profile, one.service, started, waited=not no_wait)
                    _name_comparison(one)
    except EnvgenError as error:
        error.details = {"started": documents}
        raise
    answer(documents[0] if len(names) == 1 else documents)
    if stay:
        notify_ready(f"{names[0]} is {'running' if started.awaited.answer.unasked else 'ready'}")
        checked[0].stay(started.container)
    return 0


def _name_comparison(checked: Checked) -> None:
    """Print the command that compares the answers of a variant with those of what ran before."""
    profile, running = checked.deployment.profile, checked.found.running
    before = running.labels.get(VARIANT_LABEL, "") if running else ""
    if profile.variant and before != profile.variant and profile.services[checked.service].is_vllm:
        words = f"{checked.service} {profile.chosen_variant} --against {before or PLAIN}"
        click.echo(f"  are its answers right? envgen answers {words}")


def _checked(session: Session, names: tuple[str, ...], *, yes: bool, predict: bool) -> tuple[Checked, ...]:
    """The services, checked; what is missing is made first, if the user agrees. PreflightError otherwise."""
    with moving("checking"):
        try:
            return check_all(session.deployment(), names, predict=predict)
        except PreflightError as error:
            if not error.only_lacking:
                raise
            from envgen.app import provision
            from envgen.cli.build.build import provide

            refused, lacking = error, provision.look(session, names)
    if not lacking:
        raise refused
    lines = ["missing, and made now:" if yes else "missing, and `up` can make it:", *lacking.lines()]
    if yes:
        progress("\n".join(lines))
    elif not ask("\n".join([*lines, "Do this now?"])):
        command = " ".join(filter(None, ("envgen up", *names, "--yes", lacking.deployment.profile.chosen_variant)))
        refused.problems = (
            *(replace(problem, hint="") for problem in refused.problems),
            Problem("\n".join(lines), hint=command),
        )
        raise refused
    provide(session, lacking)
    with moving("checking"):
        return check_all(session.deployment(), names, predict=predict)
