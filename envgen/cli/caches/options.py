"""What the verbs of `envgen cache` share: options, and the cache of the chosen profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envgen.app.session import Session

if TYPE_CHECKING:
    from envgen.jitcache.service import JitCache

HELP = {"help_option_names": ["-h", "--help"]}

version_option = click.option("--version", "version", metavar="V", help="Only this FlashInfer version, as listed.")
arch_option = click.option("--arch", metavar="A", help="Only this arch: 12.1a or 121a; `none`: without one.")


def open_cache(session: Session) -> JitCache:
    """The cache of the chosen profile."""
    from envgen.engine.docker import connect
    from envgen.jitcache.service import JitCache

    profile = session.profile()
    return JitCache(connect(), profile, session.loaded().project.root)
