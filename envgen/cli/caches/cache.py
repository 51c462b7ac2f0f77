"""`envgen cache`: the group. Each command's file is imported when the command is used."""

from __future__ import annotations

from typing import ClassVar

import click

from envgen.cli import Groups, LazyGroup


class CacheGroup(LazyGroup):
    """The commands of `envgen cache`."""

    groups: ClassVar[Groups] = {
        "Commands": {
            "list": ("caches.read:list_", "Show every compiled module: size, objects, age, state."),
            "why": ("caches.read:why", "Say why a module is stale, or that it is not."),
            "modules": ("caches.read:modules", "Print the names of the modules that earlier runs used."),
            "clear": ("caches.clear:clear", "Remove compiled modules, by name or by cause."),
            "warm": ("caches.warm:warm", "Compile modules before anything needs them."),
            "baseline": ("caches.read:baseline", "Record the bytes that modules were compiled from."),
            "gc": ("caches.space:gc", "Remove namespaces that were not used for long."),
            "save": ("caches.space:save", "Write the whole cache into an archive that keeps its times."),
            "load": ("caches.space:load", "Put a saved cache into the profile's."),
            "audit": ("caches.audit:audit", "Show which GPU code each library really holds."),
        }
    }


@click.group(cls=CacheGroup)
def command() -> None:
    """FlashInfer's JIT cache: what is compiled, what is stale and why, and clearing one module at a time.

    \b
    Examples:
      envgen cache list
      envgen cache why fused_moe_120
      envgen cache clear fused_moe_120
    """
