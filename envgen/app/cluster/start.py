"""Check and start a service on several machines: the counterpart of `start.py`, which is for one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envgen.app.cluster import nodes
from envgen.app.cluster.group import Group
from envgen.app.cluster.machines import connected
from envgen.app.start import Checked, StartOptions
from envgen.deployment import Deployment, require_described
from envgen.engine.values import Container
from envgen.errors import Problem
from envgen.serve import preflight
from envgen.serve.differences import differences, keep_moment
from envgen.serve.launch import Started
from envgen.serve.preflight import PreflightError
from envgen.text import progress


@dataclass(frozen=True)
class CheckedCluster(Checked):
    """A service that passed the checks on all its machines. ``ranks``: the machines, the head
    first.
    """

    ranks: tuple[Deployment, ...] = ()

    @property
    def machines(self) -> tuple[Deployment, ...]:
        return self.ranks

    @property
    def group(self) -> Group:
        """All machines as one."""
        return Group(self.ranks, self.service)

    def launch(self, options: StartOptions) -> Started:
        """Start all ranks, and wait. What runs with other settings is stopped on all machines
        first.
        """
        if self.running and (options.again or self.differing or options.recreate):
            self._take_down()
        return self.group.start(wait_for_it=options.wait, timeout=options.timeout)

    def _take_down(self) -> None:
        """Stop it on all machines, and check what could not be checked while it ran."""
        progress(f"  stopping {self.service} on {', '.join(one.node for one in self.ranks)}")
        problems = [Problem(line) for line in self.group.take_down()]
        if problems := problems or nodes.problems(self.deployment, self.service, self.ranks):
            raise PreflightError(self.service, tuple(problems))

    def stay(self, container: Container) -> None:
        self.group.stay()


def check(deployment: Deployment, service: str) -> Checked:
    """Check all machines of ``service``, and what must agree between them. PreflightError with
    every problem.
    """
    profile = deployment.profile
    machines = connected(deployment, require_described(profile, service).nodes)
    ranks = [rank.to_start(service) for rank in machines.reached]
    for rank in ranks:
        rank.require_name()
    there = [(rank, rank.engine.containers(profile.compose_name, service)) for rank in ranks]
    running = [(rank, one) for rank, containers in there for one in containers]
    problems = [
        replace(one, message=rank.named(one.message))
        for rank, containers in there
        for one in preflight.refusals(rank, service, running=bool(containers))
    ]
    if not running:
        problems += nodes.problems(deployment, service, ranks)
    elif len(running) < len(ranks) + len(machines.lost):
        message = f"it runs on {', '.join(rank.node for rank, _ in running)} alone"
        problems.append(Problem(message, hint=f"envgen down {service} {profile.chosen}"))
    if problems:
        raise PreflightError(service, tuple(problems))
    differing = [
        rank.named(line)
        for rank, one in running
        for line in differences(keep_moment(rank, one), service, one)
    ]
    first = running[0][1] if running else None
    notes = tuple(preflight.notes(ranks[0], service, running=bool(running)))
    return CheckedCluster(ranks[0], service, first, tuple(differing), notes, ranks=tuple(ranks))
