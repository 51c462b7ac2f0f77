"""Kernels of a candidate are compiled while the old server serves on."""

from __future__ import annotations

from envgen.app.cluster.machines import all_machines
from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.errors import EnvgenError
from envgen.jitcache.place import CACHE, cache_mount
from envgen.jitcache.service import JitCache
from envgen.jitcache.warm import compile_for
from envgen.text import first_of, progress


def compile_ahead(session: Session, candidate: Session) -> None:
    """Compile for the candidate what FlashInfer has compiled for the old server, on each machine.

    Another FlashInfer has a cache of its own, which begins empty: without this the server is away
    for as long as its compilers run. What can't be compiled by name is left to the start.
    """
    machines = zip(
        all_machines(session.deployment()), all_machines(candidate.deployment()), strict=True
    )
    for old, new in machines:
        try:
            _compile(old, new)
        except EnvgenError as error:
            progress(new.named(f"not compiled beforehand: {error}"))


def _compile(old: Deployment, new: Deployment) -> None:
    if CACHE not in old.profile.caches or CACHE not in new.profile.caches:
        return
    if cache_mount(old).source == cache_mount(new).source:
        return  # the same modules
    names = sorted({module.name for module in JitCache(old).inventory().modules})
    if not names:
        return
    listed = ", ".join(first_of(names, 6))
    progress(new.named(f"compiling for the candidate, while the server serves on: {listed}"))
    for module in compile_for(JitCache(new), names, new.profile.build.max_jobs.count, progress):
        if module.outcome not in ("done", "fresh"):
            progress(f"  {module.name}: left to the start ({module.outcome})")
