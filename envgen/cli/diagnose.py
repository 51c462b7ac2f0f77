"""Hands the log classifier to rooms that may not import it."""

from __future__ import annotations

from collections.abc import Sequence


def service_failure(lines: Sequence[str], exit_code: int | None, oom_killed: bool) -> tuple[str, str] | None:
    """What a service's output says about its end: the cause and the cure; None when no rule knows it."""
    from envgen.explain import cause_of

    cause = cause_of(lines, exit_code=exit_code, service=True, oom_killed=oom_killed)
    return (cause.summary, cause.cure) if cause else None
