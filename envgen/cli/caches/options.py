"""What the verbs of `envgen cache` share: options, and the cache of the chosen profile."""

from __future__ import annotations

import click

from envgen.app.session import Session
from envgen.engine.docker import connect
from envgen.jitcache.service import JitCache

version_option = click.option("--version", "version", metavar="V", help="Only this FlashInfer version, as listed.")
arch_option = click.option("--arch", metavar="A", help="Only this arch: 12.1a or 121a; `none`: without one.")


def open_cache(session: Session) -> JitCache:
    """The cache of the chosen profile."""
    profile = session.profile()
    return JitCache(connect(), profile, session.loaded().project.root)
