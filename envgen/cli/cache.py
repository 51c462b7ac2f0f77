"""`envgen cache`: the group. Each verb's file is imported when the verb is used."""

from __future__ import annotations

from typing import ClassVar

import click

from envgen.cli import LazyGroup

_READ = "envgen.cli.cache_read"
_SPACE = "envgen.cli.cache_space"


class CacheGroup(LazyGroup):
    """The verbs of `envgen cache`."""

    verbs: ClassVar[dict[str, tuple[str, str, str]]] = {
        "list": (_READ, "list_", "Show every compiled module: size, objects, age, state."),
        "why": (_READ, "why", "Say why a module is stale, or that it is not."),
        "clear": ("envgen.cli.cache_clear", "clear", "Remove compiled modules, by name or by cause."),
        "warm": ("envgen.cli.cache_warm", "warm", "Compile modules inside a running service."),
        "baseline": (_READ, "baseline", "Record the bytes that modules were compiled from."),
        "gc": (_SPACE, "gc", "Remove namespaces that were not used for long."),
        "save": (_SPACE, "save", "Write all modules into an archive that keeps their times."),
        "load": (_SPACE, "load", "Take modules from a saved archive."),
        "audit": ("envgen.cli.cache_audit", "audit", "Show which GPU code each library really holds."),
    }


@click.group(cls=CacheGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """FlashInfer's JIT cache: what is compiled, what is stale and why, and clearing one module at a time.

    \b
    Examples:
      envgen cache list
      envgen cache why fused_moe_120
      envgen cache clear fused_moe_120
    """
