"""Words that may name something in the cache, and words that could lead elsewhere. The host checks them too."""

from __future__ import annotations

from envgen.inside.jit.fault import Fault

WORK = ".envgen-work-"  # folders at the top of a cache for what goes or comes


def is_reserved(name: str) -> bool:
    """``tmp`` holds the locks; names with a leading dot are ninja's (.ninja_log) and ours (trash)."""
    return name == "tmp" or name.startswith(".")


def check_name(name: str, what: str) -> None:
    """Refuse what is not a single name inside the cache. Called before anything is opened."""
    if not name:
        raise Fault("refused", "an empty " + what + " names nothing")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise Fault("refused", repr(name) + " is a path, not a " + what + "; nothing outside the cache is ever touched")


def check_request(patterns: list[str], version: str, archs: list[str] | None) -> None:
    """Refuse a request whose words could leave the cache."""
    for pattern in patterns:
        check_name(pattern, "module")
        if is_reserved(pattern):
            raise Fault("refused", repr(pattern) + " is not a module: it belongs to the cache's own housekeeping")
    if version:
        check_name(version, "version")
    for arch in archs or ():
        if arch:
            check_name(arch, "arch")
