"""connect(): a Docker Engine, or one clear sentence why there is none."""

from __future__ import annotations

from collections.abc import Mapping

from envgen.engine.base import Engine


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """The engine that ``docker`` itself would use. EngineError: absent, stopped, forbidden, too old, no engine."""
    from envgen.engine.client import connected  # the Docker SDK takes 0.2 s to import: only where an engine is asked

    return connected(environ)
