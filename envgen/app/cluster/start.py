"""Check and start a service on several machines: the counterpart of `start.py`, which is for one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envgen.app import history
from envgen.app.cluster import nodes
from envgen.app.cluster.group import Group
from envgen.app.cluster.machines import connected
from envgen.app.images import adopt
from envgen.app.start import Checked, StartOptions, prepare_caches
from envgen.deployment import LiveService, require_described
from envgen.engine.values import Container
from envgen.errors import Problem
from envgen.serve import preflight
from envgen.serve.differences import differences, keep_moment
from envgen.serve.preflight import PreflightError
from envgen.serve.start import StartResult
from envgen.text import progress


@dataclass(frozen=True)
class CheckedCluster(Checked):
    """A service that passed the checks on all its machines, the ``ranks``, the head first."""

    ranks: tuple[LiveService, ...] = ()

    def launch(self, options: StartOptions) -> StartResult:
        """Start all ranks, and wait. What runs with other settings is stopped on all machines
        first.
        """
        if self.makes(options):
            for rank in self.ranks:
                prepare_caches(rank)
        if self.running and self.starts(options):
            self._take_down()
        started = Group(self.ranks).start(wait_for_it=options.wait, timeout=options.timeout)
        if options.wait and not started.already:
            self._remember(started)
        return started

    def _remember(self, started: StartResult) -> None:
        """Note the start of each machine."""
        for rank in self.ranks:
            for line in history.remember(rank, replace(started, container=rank.running())):
                progress(f"  {line}")

    def _take_down(self) -> None:
        """Stop it on all machines, and check what could not be checked while it ran."""
        machines = ", ".join(rank.deployment.node for rank in self.ranks)
        progress(f"  stopping {self.service.name} on {machines}")
        left = Group(self.ranks).take_down()
        problems = [Problem(line) for line in left]
        if not problems:
            problems = nodes.problems(self.ranks, self.service)
        if problems:
            raise PreflightError(self.service.name, tuple(problems))

    def stay(self, container: Container) -> None:
        Group(self.ranks).stay()


def check(service: LiveService, *, again: bool = False) -> Checked:
    """Check all machines of ``service``, and what must agree between them. PreflightError with
    every problem. ``again``: a machine was silent at first.
    """
    cluster = require_described(service.profile, service.name)
    machines = connected(service.deployment, cluster.nodes)
    ranks = [service.on(adopt(machine)).to_start() for machine in machines.reached]
    running = []
    problems = []
    for rank in ranks:
        deployment = rank.deployment
        deployment.require_name()
        there = rank.containers()
        running += [(rank, one) for one in there]
        for refusal in preflight.refusals(rank, running=bool(there)):
            message = deployment.named(refusal.message)
            problems.append(replace(refusal, message=message))
    silent = list[Problem]()
    for error in machines.lost.values():
        silent += error.problems
    if running or again:
        problems += silent
    if not running:
        problems += nodes.problems(ranks, service)
        if silent and not problems:  # all have answered since: none may be left out
            return check(service, again=True)
    elif len(running) < len(ranks):
        where = ", ".join(rank.deployment.node for rank, _ in running)
        problems.append(Problem(f"it runs on {where} alone", hint=service.hint("down")))
    if problems:
        raise PreflightError(service.name, tuple(problems))
    differing = []
    for rank, one in running:
        deployment = keep_moment(rank.deployment, one)
        for line in differences(rank.on(deployment), one):
            differing.append(deployment.named(line))
    head = ranks[0]
    first = running[0][1] if running else None
    notes = preflight.notes(head, running=bool(running))
    return CheckedCluster(head, first, tuple(differing), tuple(notes), ranks=tuple(ranks))
