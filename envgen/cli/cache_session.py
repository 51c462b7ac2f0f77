"""What the verbs of `envgen cache` share: options, and the cache of the chosen profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envgen.cli.common import Session

if TYPE_CHECKING:
    from envgen.engine.base import Engine
    from envgen.jitcache.service import JitCache

HELP = {"help_option_names": ["-h", "--help"]}

version_option = click.option("--version", "version", metavar="V", help="Only this FlashInfer version, as listed.")
arch_option = click.option("--arch", metavar="A", help="Only this arch: 12.1a or 121a; `none`: without one.")


def open_cache(session: Session) -> JitCache:
    """The cache of the chosen profile. The engine is asked for its version while the project file is read."""
    import threading

    from envgen.engine import docker

    found: list[Engine | BaseException] = []

    def connect() -> None:
        try:
            found.append(docker.connect())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    profile = session.profile()
    from envgen.jitcache.service import JitCache

    thread.join()
    engine = found[0]
    if isinstance(engine, BaseException):
        raise engine
    return JitCache(engine, profile, session.loaded().project.root)
