"""Services of a profile: the Compose project, the containers that run, and starting one."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envgen.app import weights, whose
from envgen.app.crash import keeper
from envgen.app.predict import foresee
from envgen.app.session import Session, of_running
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose
from envgen.engine.docker import connect
from envgen.engine.whose import Owner, ours, this_owner
from envgen.errors import EngineError, EnvgenError, NotFoundError, Problem, RefusedError, ServiceError, UsageError
from envgen.profile.model import Profile
from envgen.render.locking import lock_of_image
from envgen.render.workspace import Workspace, prepare
from envgen.serve import ownership, preflight
from envgen.serve.launch import Launcher, Started, compose_for
from envgen.serve.preflight import PreflightError
from envgen.serve.recreate import (
    CONFIG_HASH,
    RecreateRefused,
    differences,
    keep_moment,
    missing_here,
    settings_differ,
)
from envgen.text import progress

Agree = Callable[[str], bool]  # puts a question to the user; False without a terminal


def known_service(profile: Profile, name: str) -> None:
    """UsageError with a near match unless the profile has a service of that name."""
    if name not in profile.services:
        near = difflib.get_close_matches(name, profile.services, 1)
        raise UsageError(
            f"profile {profile.name} has no service {name!r}; it has: {', '.join(profile.services) or 'none'}",
            hint=f"did you mean `{near[0]}`?" if near else "another profile? add --profile NAME",
        )


def workspace_of(engine: Engine | None, profile: Profile, root: Path) -> Workspace:
    """The files as rendered for the image that ``engine`` has; None: as the project is now."""
    image = engine.image(profile.image_name) if engine is not None else None
    return prepare(profile, root, lock_of_image(profile, root, image.labels if image else None))


@dataclass(frozen=True)
class Opened:
    """A profile with its engine and its Compose project. ``digest``: of what is rendered for it now."""

    root: Path
    profile: Profile
    engine: Engine
    compose: Compose
    digest: str

    def running(self, service: str) -> Container:
        """The container of a running service. NotFoundError with the command that starts it."""
        return running(self.engine, self.profile, self.root, service)


def opened(session: Session) -> Opened:
    """What the commands work with that look at services, or stop them."""
    root, profile = session.loaded().project.root, session.profile()
    engine = connect()
    profile = preflight.settled(engine, profile)
    workspace = workspace_of(engine, profile, root)
    compose = compose_for(engine, profile, root, workspace.folder, preflight.gpu_mode(engine, profile.gpu)[0])
    return Opened(root, profile, engine, compose, workspace.rendered.digest)


def changed(here: Callable[[], Opened], found: Sequence[Container]) -> dict[str, bool]:
    """Container id -> whether `up` would replace it for its settings; ``here`` is asked where one can be compared."""
    known = [one for one in found if one.running and not one.one_off and CONFIG_HASH in one.labels]
    if not known:
        return {}
    opened_here = here()
    return settings_differ(opened_here.compose, opened_here.profile, known, os.environ)


def running(engine: Engine, profile: Profile, root: Path, service: str) -> Container:
    """The container of a running service of ours. NotFoundError with the command that starts it."""
    known_service(profile, service)
    whose.demand(engine, profile, root, _take(profile, service))
    found = engine.containers(profile.compose_name, service)
    if not found:
        raise NotFoundError(f"{service} is not running", hint=f"envgen up {service} --profile {profile.name}")
    return found[0]


def restart(session: Session, service: str, timeout: int | None) -> tuple[Profile, Started]:
    """Restart ``service`` and wait until it answers."""
    here = opened(session)
    container = here.running(service)
    progress(f"  restarting {container.name}")
    return _again("restart", session, here, container, timeout)


def resume(session: Session, service: str, timeout: int | None) -> tuple[Profile, Started]:
    """Start the stopped container of ``service`` as it is, and wait until it answers."""
    here = opened(session)
    known_service(here.profile, service)
    whose.demand(here.engine, here.profile, here.root, _take(here.profile, service))
    found = here.engine.containers(here.profile.compose_name, service, all=True)
    if not found:
        raise NotFoundError(
            f"{service} has no container to start", hint=f"envgen up {service} --profile {here.profile.name}"
        )
    progress(f"  starting {found[0].name}")
    return _again("start", session, here, found[0], timeout)


def _again(
    verb: str, session: Session, here: Opened, container: Container, timeout: int | None
) -> tuple[Profile, Started]:
    """`docker compose VERB` for the container's service, then wait."""
    service = container.service
    varied = of_running(session, service)
    if varied is not session:  # what it must show to be ready depends on the variant that it was started with
        here = opened(varied)
    done = here.compose.run(verb, service, check=False)
    if done.code:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ServiceError(f"{service} was not started: {''.join(reason)}", hint=f"envgen up {service}")
    keep = keeper(here.engine, here.profile, here.root, service, here.compose.files)
    profile = preflight.settled(here.engine, here.profile)
    launcher = Launcher(here.engine, here.compose, profile, service, progress, keep)
    return profile, launcher.await_ready(container, timeout)


def halt(session: Session, names: Sequence[str]) -> tuple[Profile, tuple[Container, ...]]:
    """Stop the running containers of these services (none named: of all); they stay, for `start`."""
    here = opened(session)
    whose.demand(here.engine, here.profile, here.root)
    found = of_services(here, names, all=False)
    if found:
        here.compose.run("--profile", "*", "stop", *names)
    return here.profile, found


def of_services(here: Opened, names: Sequence[str], *, all: bool, foreign: bool = False) -> tuple[Container, ...]:
    """The containers of these services (none named: everything of the profile). UsageError for an unknown name.

    ``foreign``: those of another folder under this name, too.
    """
    for name in names:
        known_service(here.profile, name)
    found = here.engine.containers(here.profile.compose_name, all=all)
    found = found if foreign else ours(found, here.root)
    return tuple(one for one in found if not names or one.service in names)


def one_off(session: Session, service: str, argv: Sequence[str], options: Sequence[str], *, tty: bool) -> int:
    """Run a command in a container of its own, with image, mounts and environment of a service; its exit code.

    The container is removed when the command ends, whatever ends it.
    """
    root, profile = session.loaded().project.root, session.profile()
    known_service(profile, service)
    engine = connect()
    whose.demand(engine, profile, root, _take(profile, service))
    workspace = workspace_of(engine, profile, root)
    gpu = preflight.check_once(engine, profile, root, service, workspace.rendered.digest)
    compose = compose_for(engine, profile, root, workspace.folder, gpu)
    whose.claim(engine, profile, root, _take(profile, service))
    ownership.prepare(engine, profile, root, service)
    whose.make_volumes(engine, profile, root)
    terminal = () if tty and sys.stdin.isatty() and sys.stdout.isatty() else ("-T",)
    return compose.interactive("--progress=quiet", "run", "--rm", "--no-deps", *terminal, *options, service, *argv)


def main_service(profile: Profile) -> str:
    """The service that is meant where none is named: `dev`, else the first. UsageError where there is none."""
    if not profile.services:
        raise UsageError(f"profile {profile.name} has no services", hint="another profile? add --profile NAME")
    return "dev" if "dev" in profile.services else next(iter(profile.services))


# --- up ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """A service that passed the checks before a start. ``differing``: what a running one has otherwise. ``other``: who
    holds the name until it is taken over."""

    here: Opened
    service: str
    found: preflight.Preflight
    differing: tuple[str, ...] = ()
    other: Owner | None = None

    @property
    def argv(self) -> list[str]:
        """What starts it."""
        return self.here.compose.argv("up", "--detach", "--no-build", "--pull", "never", self.service)


def _take(profile: Profile, service: str) -> str:
    return f"envgen up {service} --profile {profile.name} --take-over"


def check(session: Session, service: str, agree: Agree, *, take_over: bool = False) -> Checked:
    """Everything that must hold before a start. Where weights alone are missing, ``agree`` may have them fetched.

    ``take_over``: what another folder or user has under this name will make way.
    """
    root, profile = session.loaded().project.root, session.profile()
    known_service(profile, service)
    if profile.services[service].cluster is not None:
        raise RefusedError(
            f"{service} is shared by several machines (services.{service}.cluster)",
            hint=f"envgen nodes up {service}; for this machine alone: --set services.{service}.cluster=null",
        )
    engine = connect()
    other = whose.other_owner(engine, profile, root)
    if other and not take_over:
        raise whose.refused(engine, profile, root, other, _take(profile, service))
    whose.note_older(engine, profile, root)
    profile = preflight.settled(engine, profile)
    workspace = workspace_of(engine, profile, root)
    commit = weights.locked_commit(profile, root, service)
    look = partial(
        preflight.check, engine, profile, root, service, workspace.rendered.digest,
        lambda: weights.preflight(engine, profile, root, service, commit),
    )  # fmt: skip
    try:
        found = look()
    except PreflightError as refused:
        if not refused.only_weights or not _fetch(engine, profile, root, service, refused, agree):
            raise
        found = look()
    compose = compose_for(engine, profile, root, workspace.folder, found.gpu)
    here = Opened(root, profile, engine, compose, workspace.rendered.digest)
    if other and not other.same_folder(this_owner(root)):
        found = replace(found, running=None)
    if not found.running:
        return Checked(here, service, found, other=other)
    for name in missing_here(profile, found.running, os.environ):
        progress(f"  note: {name} is not set in this terminal; {service} keeps the value it was started with")
    compose = keep_moment(compose, profile, found.running, os.environ)
    differing = differences(engine, compose, profile, service, found.running)
    return Checked(replace(here, compose=compose), service, found, differing, other)


def _fetch(engine: Engine, profile: Profile, root: Path, service: str, refused: PreflightError, agree: Agree) -> bool:
    question = "\n".join([*(f"  {problem.message}" for problem in refused.problems[1:]), "Fetch them now?"])
    if not agree(question):
        return False
    weights.fetch(engine, profile, root, service)
    return True


def start(
    checked: Checked,
    agree: Agree,
    *,
    wait: bool = True,
    install: bool = True,
    predict: bool = True,
    recreate: bool = False,
    timeout: int | None = None,
) -> Started:
    """Start what was checked. ``agree`` is asked before a running container with other settings is replaced."""
    here, service, found = checked.here, checked.service, checked.found
    profile = here.profile
    named = f"{profile.name}, variant {profile.variant}" if profile.variant else profile.name
    progress(f"up {service}: profile {named}, image {profile.image_name}, gpu {found.gpu.value}")
    for note in found.notes:
        progress(f"  note: {note}")
    if unset := [name for name in profile.secrets if name not in os.environ and not found.running]:
        progress(f"  note: not set in this terminal or in .env: {', '.join(unset)}")
    if predict and not found.running:
        for note in foresee(here.engine, profile, here.root, service):
            progress(f"  note: {note}")
    if found.running and checked.differing and not recreate:
        _may_replace(service, found.running, checked.differing, agree)
    if checked.other:
        whose.take_over(here.engine, profile, here.root, here.compose)
    whose.claim(here.engine, profile, here.root, _take(profile, service))
    if checked.differing or not found.running:
        ownership.prepare(here.engine, profile, here.root, service)
    whose.make_volumes(here.engine, profile, here.root)
    keep = keeper(here.engine, profile, here.root, service, here.compose.files)
    launcher = Launcher(here.engine, here.compose, profile, service, progress, keep)
    try:
        return launcher.start(wait=wait, install=install, timeout=timeout)
    except KeyboardInterrupt:
        if launcher.created:
            more = f"`envgen ps`, `envgen logs -f {service}`, `envgen down`"
            progress(f"\nno longer waiting; {service} keeps starting: {more}")
        raise


def check_all(session: Session, names: Sequence[str], agree: Agree, *, take_over: bool = False) -> tuple[Checked, ...]:
    """Check these services (none named: all of the profile). PreflightError with the problems of all of them."""
    names = tuple(dict.fromkeys(names)) or tuple(session.profile().services)
    if not names:
        main_service(session.profile())
    passed, refused = [], list[PreflightError]()
    for name in names:
        known_service(session.profile(), name)
    for name in names:
        try:
            passed.append(check(session, name, agree, take_over=take_over))
        except PreflightError as error:
            refused.append(error)
    if refused:
        refused[0].problems = tuple(dict.fromkeys(problem for one in refused for problem in one.problems))
        raise refused[0]
    return tuple(passed)


def start_all(checked: Sequence[Checked], agree: Agree, **how: Any) -> Iterator[tuple[Checked, Started]]:
    """Start what was checked, one after the other, with ``start``'s options; each as soon as it is ready.

    One that fails keeps none of the others from being started. ServiceError at the end names those that failed.
    """
    failed: dict[str, EnvgenError] = {}
    for one in checked:
        try:
            yield one, start(one, agree, **how)
        except EnvgenError as error:
            if len(checked) == 1 or isinstance(error, EngineError):
                raise
            failed[one.service] = error
    if failed:
        summary = Problem(f"{len(failed)} of {len(checked)} services did not start: {', '.join(failed)}")
        raised = next(iter(failed.values()))
        raised.problems = (summary, *(problem for error in failed.values() for problem in error.problems))
        raise raised


def _may_replace(service: str, running: Container, differing: tuple[str, ...], agree: Agree) -> None:
    """Return if ``running`` may be replaced: it is unhealthy, or the user says yes. RecreateRefused otherwise."""
    for difference in differing:
        progress(f"  {service}: {difference}")
    if running.health == "unhealthy":
        progress(f"  {service} is unhealthy and is replaced")
    elif not agree(f"{service} is running. Replace it?"):
        raise RecreateRefused(service, differing)
