"""Warnings in the log of a running server: wrong numbers, slow kernels, settings without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.explain import NOTICES, Explanation, classify
from envgen.serve.ended import log_text
from envgen.text import instant

WINDOW = 1800.0  # seconds, in which a server has started
OVER = ("queue_stuck", "nccl_nvls")  # what a server that serves has survived


def notices(engine: Engine, container: Container) -> tuple[Explanation, ...]:
    """The notices in the log of a running container's start; none of another one."""
    began = instant(container.started_at)
    if not container.running or not began:
        return ()
    until = f"{float(began) + WINDOW:.9f}"
    lines = engine.logs(container.id, tail=None, since=began, until=until).splitlines()
    found = classify(map(log_text, lines), kind="serve", files=NOTICES)
    return tuple(one for one in found if not one.failure and one.rule not in OVER)


def of_all(
    engine: Engine, containers: Iterable[Container]
) -> Mapping[str, tuple[Explanation, ...]]:
    """Name -> ``notices``, of those that have some."""
    by_name = {one.name: notices(engine, one) for one in containers if not one.one_off}
    return {name: found for name, found in by_name.items() if found}


def in_words(explanations: Iterable[Explanation]) -> list[str]:
    """Each with what to do, and the line of the log."""
    return [
        line
        for one in explanations
        for line in (f"note: {one.cause}: {one.cure}", f"      {one.evidence[:200]}")
    ]
