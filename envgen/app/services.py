"""Services of a profile: check, start, stop and remove them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from envgen.app import grants, nodes, weights
from envgen.app.cluster import Group
from envgen.app.crash import bundle_writer
from envgen.app.places import place_of, places, rendered
from envgen.app.predict import ask_release
from envgen.app.session import Session, with_running_variant
from envgen.deployment import Deployment, known_service
from envgen.doctor import collect
from envgen.engine.endpoint import require_plugin
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import (
    EngineError,
    EnvgenError,
    NotFoundError,
    Problem,
    RefusedError,
    ServiceError,
    UsageError,
    named,
)
from envgen.patches.checkout import lacking
from envgen.profile.model import GpuMode, Profile
from envgen.serve import preflight
from envgen.serve.differences import differences, keep_moment, missing_here, recreate_refused
from envgen.serve.edits import edits_by_diff, edits_inside
from envgen.serve.launch import Launcher, Started, what_next
from envgen.serve.preflight import PreflightError
from envgen.serve.readiness import Readiness
from envgen.serve.wait import Awaited
from envgen.text import progress

T = TypeVar("T")
Agree = Callable[[str], bool]  # asks the user a yes-or-no question; False without a terminal


def _there(deployment: Deployment, service: str) -> Container:
    """The container of a service, running or not. NotFoundError with the command that creates it."""
    profile = deployment.profile
    deployment.require_name()
    found = deployment.engine.containers(profile.compose_name, service, all=True)
    if not found:
        up = f"envgen up {service} {profile.chosen_variant}"
        raise NotFoundError(f"{service} has no container to start", hint=up)
    return found[0]


def again(verb: str, session: Session, service: str, timeout: int | None) -> tuple[Profile, Started]:
    """`docker compose VERB` (`start`, `restart`) for the container that a service has; wait until it answers.

    On several machines, a restart stops all ranks before it starts the first.
    """
    deployment = place_of(session.deployment(), service, None)
    container = _there(deployment, service)
    if verb == "start":
        _not_paused(container)
    varied = with_running_variant(session, service, lambda: deployment.engine, stopped=True)
    if deployment.node:  # `up` keeps existing containers and starts them
        checked = predicted(check(varied.deployment(), service))
        return checked.deployment.profile, start(checked, _decline, timeout=timeout, again=verb == "restart")
    if varied is not session:  # when it is ready depends on the variant that it was started with
        deployment = rendered(varied.deployment())
    profile = deployment.profile
    preflight.check_again(deployment, container)  # before a running one is stopped
    _tell_edits(deployment, service, [container])
    progress(f"  {verb}ing {container.name}")
    done = deployment.compose.run(verb, service, check=False)
    if done.code:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        if refused := preflight.changed_meanwhile(deployment, service, lines):
            raise refused
        hint, reason = f"envgen up {service} {profile.chosen_variant}", "".join(lines[-1:])
        if preflight.network_gone(lines):
            reason = "its container belongs to a network that was removed (by `docker network prune`?)"
            hint = f"to create the container anew: {hint}"
        raise ServiceError(f"{service} was not started: {reason}", hint=hint)
    launcher = Launcher(deployment, service, progress, bundle_writer((deployment,), service))
    with _old_container(deployment, service, container):
        return profile, launcher.await_ready(container, timeout)


def _tell_edits(deployment: Deployment, service: str, kept: Sequence[Container]) -> None:
    """Print which files of packages were changed in a running container that is kept."""
    for edits in (edits_inside(deployment.engine, one, collect.program(deployment.profile)) for one in kept):
        if edits.count:
            anew = f"envgen up {service} {deployment.profile.chosen_variant} --recreate"
            progress(f"  note: {edits.were_changed} of {service}, and stay so: {edits}; a new container: {anew}")


@contextlib.contextmanager
def _old_container(deployment: Deployment, service: str, kept: Container) -> Iterator[None]:
    """Where an older container does not start: add what was changed in its files, and the command for a new one."""
    try:
        yield
    except ServiceError as failed:
        progress("  comparing the container's packages with its image")
        edits = edits_by_diff(deployment.engine, kept)
        if edits.count:
            anew = f"envgen up {service} {deployment.profile.chosen_variant} --recreate"
            changed = Problem(f"{edits.were_changed}: {edits}", hint=f"{anew}  (a new container, as the image has it)")
            failed.problems = (*failed.problems, changed)
        raise


def _not_paused(container: Container) -> None:
    """RefusedError for a paused container, which can't be started."""
    if container.state == "paused":
        raise RefusedError(f"{container.service} is paused", hint=f"docker unpause {container.name}")


def _decline(_question: str) -> bool:
    return False


def halt(deployment: Deployment, names: Sequence[str]) -> list[str]:
    """Stop the running containers of ``names`` (default: all); keep them for `start`. Returns their names."""
    deployment.require_name()
    found = deployment.containers(names, all=False)
    for one in found:
        progress(f"  stopping {deployment.named(one.name)}")
    if found:
        deployment.compose.run("--profile", "*", "stop", *names)
    return [one.name for one in found]


@dataclass(frozen=True)
class Removed:
    """The containers and volumes that were removed, or would be. ``kept``: volume -> the folder that created it."""

    containers: tuple[str, ...]
    volumes: tuple[str, ...]
    kept: Mapping[str, Path]


_ASKING = threading.Lock()  # several machines are cleaned up at once, and the terminal is one


def remove(deployment: Deployment, names: Sequence[str], *, volumes: bool, dry_run: bool, agree: Agree) -> Removed:
    """Stop and remove the containers of ``names`` (default: everything of the profile).

    ``volumes``: its volumes, too. ``agree`` is asked about those that another project folder created.
    """
    engine, compose = deployment.engine, deployment.compose
    deployment.require_name()
    found = tuple(sorted(one.name for one in deployment.containers(names, all=True)))
    known = (compose.config().get("volumes") or {}) if volumes else {}
    there = [str(one.get("name", key)) for key, one in known.items() if not one.get("external")]
    doomed = sorted(name for name in there if engine.volume(name) is not None)
    kept = {name: folder for name in doomed if (folder := deployment.volume_elsewhere(name))}
    if kept and not dry_run:
        owners = [f"  volume {deployment.named(name)} was created by {folder}" for name, folder in kept.items()]
        with _ASKING:
            kept = {} if agree("\n".join([*owners, "Delete these, too?"])) else kept
    removed = Removed(found, tuple(name for name in doomed if name not in kept), kept)
    if dry_run:
        return removed
    for name in found:
        progress(f"  stopping and removing {deployment.named(name)}")
    if not names:
        compose.run("--profile", "*", "down", "--remove-orphans", *(["--volumes"] if volumes and not kept else []))
        for name in removed.volumes if kept else ():
            engine.remove_volume(name)
    elif found:
        compose.run("--profile", "*", "rm", "--stop", "--force", *names)
    return removed


def one_off(deployment: Deployment, service: str, argv: Sequence[str], options: Sequence[str], *, tty: bool) -> int:
    """Run a command in a new container with the image, mounts and environment of a service. Returns its exit code.

    The container is removed afterwards, however the command ends.
    """
    deployment = place_of(deployment, service, None)
    deployment.require_name()
    preflight.check_once(deployment, service)
    compose = deployment.to_start(service).compose
    preflight.prepare(deployment, service)
    terminal = () if tty and sys.stdin.isatty() and sys.stdout.isatty() else ("-T",)
    return compose.interactive("--progress=quiet", "run", "--rm", "--no-deps", *terminal, *options, service, *argv)


def main_service(profile: Profile) -> str:
    """The default service: `dev`, else the first. UsageError if there is none."""
    if not profile.services:
        raise UsageError(f"profile {profile.name} has no services", hint="another profile? add --profile NAME")
    return "dev" if "dev" in profile.services else next(iter(profile.services))


# --- up ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """A service that passed the checks before a start.

    ``differing``: settings that differ in the running container. ``ranks``: its machines, if it runs on several.
    ``notes``: for the user; they stop nothing.
    """

    deployment: Deployment
    service: str
    found: preflight.Preflight
    differing: tuple[str, ...] = ()
    ranks: tuple[Deployment, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[Deployment, ...]:
        """Where it starts, the head first."""
        return self.ranks or (self.deployment,)

    @property
    def group(self) -> Group:
        """All machines as one."""
        return Group(self.ranks, self.service)


def check(deployment: Deployment, service: str) -> Checked:
    """Check everything that a start needs. PreflightError with every problem."""
    known_service(deployment.profile, service)
    require_plugin("compose")
    if deployment.profile.services[service].cluster is not None:
        return _check_shared(deployment, service)
    rendered(deployment).require_name()
    found = preflight.check(deployment, service, partial(weights.preflight, deployment, service))
    if not found.running:
        return Checked(deployment, service, found, notes=notes_on(deployment, service, found))
    _not_paused(found.running)
    for name in missing_here(deployment, found.running):
        progress(f"  note: {name} is not set in this terminal; {service} keeps the value it was started with")
    kept = keep_moment(deployment, found.running)
    return Checked(
        kept, service, found, differences(kept, service, found.running), notes=notes_on(kept, service, found)
    )


def notes_on(deployment: Deployment, service: str, found: preflight.Preflight) -> tuple[str, ...]:
    """Notes for the user that stop nothing."""
    profile, notes = deployment.profile, list[str]()
    for source, lacks in lacking(profile, deployment.root).items():
        apply = f"envgen patch apply {source} --checkout {profile.sources[source].origin.checkout}"
        notes.append(f"the checkout of {source} lacks {', '.join(lacks)}: {apply}")
    notes += found.notes
    unset = [name for name in profile.secrets if name not in deployment.shell]
    if unset and not found.running:
        notes.append(f"not set in this terminal or in .env: {', '.join(unset)}")
    return tuple(notes)


def _check_shared(deployment: Deployment, service: str) -> Checked:
    """``check`` for a service on several machines."""
    profile = deployment.profile
    found = places(deployment, (service,))
    for rank in found.found:
        try:
            rank.require_name()
        except RefusedError as refused:
            raise named(rank.node, refused) from None
    problems, ranks, running = [], list[Deployment](), list[tuple[Deployment, Container]]()
    for rank in found.found:
        there = rank.engine.containers(profile.compose_name, service)
        for one in preflight.refusals(rank, service, running=bool(there)):
            problems.append(replace(one, message=rank.named(one.message)))
        ranks.append(rank.to_start(service))
        running += [(ranks[-1], one) for one in there]
    if not running:
        problems += nodes.problems(deployment, service)
    elif len(running) < len(ranks) + len(found.lost):
        message = f"it runs on {', '.join(rank.node for rank, _ in running)} alone"
        problems.append(Problem(message, hint=f"envgen down {service} {profile.chosen}"))
    if problems:
        raise PreflightError(service, tuple(problems))
    differing = [
        rank.named(line) for rank, one in running for line in differences(keep_moment(rank, one), service, one)
    ]
    notes = preflight.exposure(profile, service)
    passed = preflight.Preflight(ranks[0].gpu, running[0][1] if running else None, tuple(notes))
    return Checked(ranks[0], service, passed, tuple(differing), tuple(ranks), notes_on(ranks[0], service, passed))


@dataclass(frozen=True)
class ServiceStart:
    """A service that is starting. ``future``: the waiting; ``finish`` returns how it ended, or raises."""

    checked: Checked
    future: Future[Any]
    finish: Callable[[], Started]


def start(checked: Checked, agree: Agree, **how: Any) -> Started:
    """Start ``checked`` with ``begin``'s options ``how``, and wait."""
    ((_, started),) = start_all([checked], agree, **how)
    return started


def begin(
    checked: Checked, agree: Agree, *, wait: bool = True, recreate: bool = False, timeout: int | None = None,
    again: bool = False,
) -> ServiceStart:  # fmt: skip
    """Start ``checked`` without waiting. ``agree`` is asked before a running container is replaced.

    ``again``: a service on several machines is stopped first.
    """
    deployment, service, found = checked.deployment, checked.service, checked.found
    profile = deployment.profile
    named = f"{profile.name}, variant {profile.variant}" if profile.variant else profile.name
    progress(f"up {service}: profile {named}, image {profile.image_name}, gpu {found.gpu.value}")
    for note in filter(None, (grants.note(deployment, service), *checked.notes)):
        progress(f"  note: {note}")
    if found.running and checked.differing and not recreate and not again:
        _may_replace(profile, service, found.running, checked.differing, agree)
    for one in checked.places:
        one.require_name()
        if checked.differing or recreate or not found.running:
            preflight.prepare(one, service)
    if not checked.ranks:
        return _begin_here(checked, wait, timeout, recreate)
    if found.running and (again or checked.differing or recreate):
        _end_all(checked)
    started = checked.group.start(wait_for_it=wait, timeout=timeout)
    return ServiceStart(checked, _done(started), lambda: started)


def _begin_here(checked: Checked, wait: bool, timeout: int | None, recreate: bool) -> ServiceStart:
    """Start it on this engine; wait in the background."""
    deployment, service = checked.deployment, checked.service
    if checked.found.running and not (recreate or checked.differing):
        _tell_edits(deployment, service, [checked.found.running])
    launcher = Launcher(deployment, service, progress, bundle_writer((deployment,), service), recreate=recreate)
    try:
        begun = launcher.begin()
    except KeyboardInterrupt:
        if launcher.created:
            _left(checked)
        raise
    is_old = not begun.created

    def finish() -> Started:
        with _old_container(deployment, service, begun.container) if is_old else contextlib.nullcontext():
            return launcher.finish(begun, future.result)

    ready = _done(Awaited(Readiness(True)))
    future = in_background(lambda: launcher.wait(begun.container.id, timeout)) if wait else ready
    return ServiceStart(checked, future, finish)


def _done(value: T) -> Future[T]:
    future = Future[T]()
    future.set_result(value)
    return future


def _left(checked: Checked) -> None:
    """Print that the service keeps starting, and the commands for it."""
    again = what_next(checked.deployment.profile, checked.service)
    progress(f"\nstopped waiting; {checked.service} keeps starting: {again}")


def _end_all(checked: Checked) -> None:
    """Stop a service on all machines, and check what could not be checked while it ran."""
    progress(f"  stopping {checked.service} on {', '.join(one.node for one in checked.ranks)}")
    problems = [Problem(line) for line in checked.group.take_down()]
    if problems := problems or nodes.problems(checked.deployment, checked.service):
        raise PreflightError(checked.service, tuple(problems))


def check_all(deployment: Deployment, names: Sequence[str], *, predict: bool = True) -> tuple[Checked, ...]:
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


def _check_memory(deployment: Deployment, passed: Sequence[Checked]) -> None:
    """PreflightError if each of the services that start would fit into the memory, but not all of them."""
    starting = [one for one in passed if not one.found.running and not one.ranks]
    needs = {
        one.service: need.bytes for one in starting if (need := deployment.profile.services[one.service].needs_memory)
    }
    if len(needs) < 2 or not deployment.engine.info().local:
        return
    problems, _ = preflight.check_memory(sum(needs.values()), unified=False)
    if problems:
        names = ", ".join(needs)
        raise PreflightError(names, (replace(problems[0], message=f"together, {problems[0].message}"),))


def predicted(checked: Checked) -> Checked:
    """``checked`` with notes on what its vLLM would choose. PreflightError if vLLM refuses the settings."""
    if checked.found.running and not checked.differing:
        return checked
    return replace(checked, notes=(*checked.notes, *ask_release(checked.deployment, checked.service)))


def _all_of(asked: Mapping[str, Callable[[], Checked]]) -> tuple[Checked, ...]:
    """Ask for each service. PreflightError with the problems of all; services with equal problems share them."""
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
            problem for why, who in reasons.items()
            for problem in (Problem(f"{', '.join(who)} {'was' if len(who) == 1 else 'were'} not started:"), *why)
        )  # fmt: skip
        raise raised
    return tuple(passed)


def start_all(checked: Sequence[Checked], agree: Agree, **how: Any) -> Iterator[tuple[Checked, Started]]:
    """Start the services with ``begin``'s options ``how``; yield each as soon as it is ready.

    Containers are created one after the other and become ready in parallel, except that models load onto a GPU one at
    a time: vLLM measures the free memory. If one fails, the others still start. The error at the end names all that
    failed.
    """
    failed: dict[str, EnvgenError] = {}
    waiting: list[ServiceStart] = []

    def ready(among: Sequence[ServiceStart]) -> Iterator[tuple[Checked, Started]]:
        """Wait for at least one of ``among``; yield those that are done."""
        futures.wait([one.future for one in among], return_when=futures.FIRST_COMPLETED)
        for one in [one for one in among if one.future.done()]:
            waiting.remove(one)
            try:
                yield one.checked, one.finish()
            except EnvgenError as error:
                fail(one.checked, error)

    def fail(one: Checked, error: EnvgenError) -> None:
        if len(checked) == 1 or isinstance(error, EngineError):
            raise error
        failed[one.service] = error

    try:
        for one in checked:
            while among := [other for other in waiting if loads_model(one) and loads_model(other.checked)]:
                yield from ready(among)
            try:
                waiting.append(begin(one, agree, **how))
            except EnvgenError as error:
                fail(one, error)
        while waiting:
            yield from ready(waiting)
    except KeyboardInterrupt:
        for each in waiting:
            _left(each.checked)
        raise
    if failed:
        summary = Problem(f"{len(failed)} of {len(checked)} services did not start: {', '.join(failed)}")
        raised = next(iter(failed.values()))
        raised.problems = (summary, *(problem for error in failed.values() for problem in error.problems))
        raise raised


def loads_model(one: Checked) -> bool:
    """Whether it puts a model on a GPU."""
    service = one.deployment.profile.services[one.service]
    return one.found.gpu is not GpuMode.NONE and service.gpu != () and (service.is_vllm or service.ready is not None)


def _may_replace(profile: Profile, service: str, running: Container, differing: tuple[str, ...], agree: Agree) -> None:
    """RefusedError unless ``running`` is unhealthy or the user agrees to replace it."""
    for difference in differing:
        progress(f"  {service}: {difference}")
    if running.health == "unhealthy":
        progress(f"  {service} is unhealthy and is replaced")
    elif not agree(f"{service} is running. Replace it?"):
        raise recreate_refused(profile, service, differing)
