"""Start one service: check, announce, and take the steps of a start. `cluster/start.py` is for
several machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from envgen.app import history, weights
from envgen.app.failed import failed
from envgen.app.images import adopt
from envgen.app.stay import Stay
from envgen.app.upgrade import journal
from envgen.deployment import LiveService
from envgen.engine.endpoint import require_plugin
from envgen.engine.values import COMPOSE_PROJECT, Container
from envgen.errors import EnvgenError
from envgen.jitcache.service import JitCache
from envgen.serve import preflight
from envgen.serve.differences import compared, recreate_refused
from envgen.serve.prepare import prepare
from envgen.serve.start import CREATE, INSTALL, KEEP, PREPARE, STOP, WAIT, Start, StartResult, Step
from envgen.text import first_of, progress

Agree = Callable[[str], bool]  # asks the user a yes-or-no question; False without a terminal


@dataclass(frozen=True)
class StartOptions:
    """``timeout``: seconds to wait; None: as long as the profile says. ``again``: for a restart.
    ``agreed``: services whose running containers the user has agreed to replace.
    """

    wait: bool = True
    recreate: bool = False
    timeout: float | None = None
    again: bool = False
    agreed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """A service that passed the checks before a start.

    ``running``: the container that runs already. ``differing``: its settings that differ.
    ``notes``: for the user; they stop nothing.
    """

    service: LiveService
    running: Container | None = None
    differing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def starts(self, options: StartOptions) -> bool:
        """Whether a container is started: False for a running one that is left alone."""
        return not self.running or bool(self.differing) or options.recreate or options.again

    def makes(self, options: StartOptions) -> bool:
        """Whether a container may be made anew."""
        return not self.running or bool(self.differing) or options.recreate

    def start(self, agree: Agree, options: StartOptions) -> StartResult:
        """Start it, and wait until it is ready. ``agree`` is asked before a running container is
        replaced.
        """
        service = self.service
        running = self.running
        profile = service.profile
        chosen = f"{profile.name}, variant {profile.variant}" if profile.variant else profile.name
        gpu = service.deployment.gpu.value
        progress(f"up {service.name}: profile {chosen}, image {profile.image_name}, gpu {gpu}")
        for note in self.notes:
            progress(f"  note: {note}")
        changes = service.own_changes() if self.starts(options) else []
        if changes:
            progress(f"  note: {profile.compose} changes {', '.join(changes)}")
        root = service.deployment.root
        is_trial = service.deployment.own_lock is not None
        broken_off = not is_trial and journal.abandoned(root, profile.name)
        if broken_off:
            progress("  a trial of an upgrade was broken off, and ends here: nothing was changed")
        elif running and self.differing and not options.recreate and not options.again:
            self._may_replace(running, agree, options.agreed)
        started = self.launch(options)
        if broken_off:
            journal.forget(root, profile.name)
        return started

    def _may_replace(self, running: Container, agree: Agree, agreed: Sequence[str]) -> None:
        """RefusedError unless ``running`` is unhealthy or the user agrees, or has ``agreed``, to
        replace it.
        """
        name = self.service.name
        for difference in self.differing:
            progress(f"  {name}: {difference}")
        if running.health == "unhealthy":
            progress(f"  {name} is unhealthy and is replaced")
        elif name not in agreed and not agree(f"{name} is running. Replace it?"):
            raise recreate_refused(self.service, self.differing)

    def steps(self, options: StartOptions) -> Sequence[Step]:
        """The steps that it needs."""
        if not self.starts(options) and not preflight.is_development(self.service.profile):
            steps = [KEEP]
        else:
            steps = [CREATE, INSTALL]
        if options.again:
            steps.insert(0, STOP)
        if self.makes(options):
            steps.insert(0, PREPARE)
        return [*steps, WAIT] if options.wait else steps

    def launch(self, options: StartOptions) -> StartResult:
        """Take the steps."""
        service = self.service
        found = {} if self.running else history.found(service)
        start = Start(
            service,
            partial(failed, service, found=found),
            recreate=options.recreate,
            timeout=options.timeout,
            prepare=partial(prepare_caches, service),
            running=self.running,
        )
        try:
            started = start.run(self.steps(options))
        except KeyboardInterrupt:
            if start.container is not None:
                more = what_next(service)
                progress(f"\nno longer waiting; {service.name} is still starting: {more}")
            raise
        if options.wait and not started.already and service.described.serves:
            for line in history.remember(service, started, found):
                progress(f"  {line}")
        return started

    def stay(self, container: Container) -> None:
        """Watch the running service until it ends. ServiceError unless it was stopped on purpose."""
        Stay(self.service, container).watch()


def prepare_caches(service: LiveService) -> None:
    """Make folders and volumes ready, with the kernels of an older image."""
    from envgen.jitcache.space import with_kernels  # not for a service that runs

    with_kernels(service.deployment, partial(prepare, service))


def stale_by_driver(service: LiveService) -> list[str]:
    """A note on kernels that another driver than that of the last start makes stale, on this machine."""
    if not service.deployment.is_local:
        return []
    noted = history.starts(service.deployment.root, service.profile.name, service.name)
    then = noted[-1].facts if noted else {}
    changed = history.changes(then, history.machine_facts()).get(history.DRIVER)
    if changed is None:
        return []
    stale = []
    with suppress(EnvgenError, OSError):
        for module in JitCache(service.deployment).inventory().modules:
            if any(reason.stale and reason.kind == "driver" for reason in module.reasons):
                stale.append(module.name)
    names = ", ".join(first_of(stale, 5))
    clear = service.profile.hint("cache", "clear --stale")
    return [f"{changed}, so compiled kernels are stale: {names}; `{clear}`"] if stale else []


def what_next(service: LiveService) -> str:
    """The commands for a service that keeps starting."""
    hint = service.profile.hint
    return f"`{hint('ps')}`, `{hint('logs', '-f', service.name)}`, `{hint('down')}`"


def check(service: LiveService) -> Checked:
    """Check everything that a start on this engine needs. PreflightError with every problem."""
    deployment = service.deployment
    project = service.profile.compose_name
    engine = deployment.engine
    rows = engine.listed(all=True)
    there = engine.inspected(row for row in rows if row.labels.get(COMPOSE_PROJECT) == project)
    active = [
        one for one in there if one.service == service.name and one.active and not one.one_off
    ]
    # a Compose that started it is new enough, and asking its version takes as long as all the rest
    if not active:
        require_plugin("compose")
    deployment = adopt(deployment)
    service = service.on(deployment)
    deployment.rendered_files().require_name(there)
    notes = preflight.check(service, rows, active, partial(weights.preflight, service))
    running = next(iter(active), None)
    differing = tuple[str, ...]()
    if running:
        service, differing = compared(service, running)
    notes += preflight.notes(service, running=bool(running))
    notes += [] if running else stale_by_driver(service)
    return Checked(service, running, differing, tuple(notes))
