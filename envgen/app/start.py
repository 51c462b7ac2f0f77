"""Start one service: check, launch, wait. This file is for one machine; `cluster/start.py` is for
several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from envgen.app import failed, weights
from envgen.app.stay import Stay
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.endpoint import require_plugin, with_plugin
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.serve import preflight
from envgen.serve.differences import compared, recreate_refused
from envgen.serve.launch import Begun, Launcher, Started, what_next
from envgen.serve.prepare import prepare
from envgen.serve.readiness import Readiness
from envgen.serve.wait import Awaited
from envgen.text import progress

Agree = Callable[[str], bool]  # asks the user a yes-or-no question; False without a terminal


@dataclass(frozen=True)
class StartOptions:
    """``timeout``: seconds to wait; None: as long as the profile says. ``again``: for a restart."""

    wait: bool = True
    recreate: bool = False
    timeout: float | None = None
    again: bool = False


@dataclass(frozen=True)
class Checked:
    """A service that passed the checks before a start.

    ``running``: the container that runs already. ``differing``: its settings that differ.
    ``notes``: for the user; they stop nothing.
    """

    deployment: Deployment
    service: str
    running: Container | None = None
    differing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[Deployment, ...]:
        """Where it starts, the head first."""
        return (self.deployment,)

    def starts(self, options: StartOptions) -> bool:
        """Whether a container is started: False for a running one that is left alone."""
        return not self.running or bool(self.differing) or options.recreate or options.again

    def start(self, agree: Agree, options: StartOptions) -> Started:
        """Start it, and wait until it is ready. ``agree`` is asked before a running container is
        replaced.
        """
        profile, running = self.deployment.profile, self.running
        chosen = f"{profile.name}, variant {profile.variant}" if profile.variant else profile.name
        progress(
            f"up {self.service}: profile {chosen}, image {profile.image_name}, gpu {self.deployment.gpu.value}"
        )
        changes = (
            LiveService(self.deployment, self.service).own_changes() if self.starts(options) else []
        )
        for note in (
            *self.notes,
            *([f"{profile.compose} changes {', '.join(changes)}"] if changes else []),
        ):
            progress(f"  note: {note}")
        if running and self.differing and not options.recreate and not options.again:
            self._may_replace(running, agree)
        for machine in self.machines if self.starts(options) else ():
            machine.require_name()  # a question may have taken hours
            if self.differing or options.recreate or not running:
                from envgen.jitcache.space import with_kernels  # not for a service that runs

                with_kernels(machine, partial(prepare, machine, self.service))
        return self.launch(options)

    def _may_replace(self, running: Container, agree: Agree) -> None:
        """RefusedError unless ``running`` is unhealthy or the user agrees to replace it."""
        for difference in self.differing:
            progress(f"  {self.service}: {difference}")
        if running.health == "unhealthy":
            progress(f"  {self.service} is unhealthy and is replaced")
        elif not agree(f"{self.service} is running. Replace it?"):
            raise recreate_refused(self.deployment.profile, self.service, self.differing)

    def launch(self, options: StartOptions) -> Started:
        """Create the container, and wait."""
        deployment, service = self.deployment, self.service
        launcher = Launcher(deployment, service, progress, options.recreate)
        on_failure = partial(failed.failed, deployment, service)
        if (
            self.running
            and not self.starts(options)
            and not preflight.is_development(deployment.profile)
        ):
            # It runs as the profile says: Compose would find nothing to do, and takes its time for
            # it.
            begun = Begun(self.running, launcher.began, already=True, created=False)
        else:
            begun = failed.begin(launcher, on_failure)
        try:
            with failed.cleaned_up(launcher, begun, on_failure):
                launcher.install()
                if not options.wait:
                    return launcher.started(begun, Awaited(Readiness(True)))
                return launcher.started(
                    begun, launcher.wait(begun.container.id, options.timeout, already=begun.already)
                )
        except KeyboardInterrupt:
            more = what_next(deployment.profile, service)
            progress(f"\nno longer waiting; {service} is still starting: {more}")
            raise

    def stay(self, container: Container) -> None:
        """Watch the running service until it ends. ServiceError unless it was stopped on purpose."""
        Stay(self.deployment, self.service, container).watch()


def check(deployment: Deployment, service: str) -> Checked:
    """Check everything that a start on this engine needs. PreflightError with every problem."""
    try:
        containers = deployment.engine.containers(deployment.profile.compose_name, service)
    except EngineError as error:
        raise with_plugin(error, "compose") from None
    # a Compose that started it is new enough, and asking its version takes as long as all the rest
    if not containers:
        require_plugin("compose")
    deployment.rendered_files().require_name()
    notes = preflight.check(
        deployment, service, containers, partial(weights.preflight, deployment, service)
    )
    running, differing = next(iter(containers), None), tuple[str, ...]()
    if running:
        deployment, differing = compared(deployment, service, running)
    notes += preflight.notes(deployment, service, running=bool(running))
    return Checked(deployment, service, running, differing, tuple(notes))
