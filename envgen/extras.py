"""Libraries that only some commands need, and that are installed by name: ``envgen[bench]``."""

from __future__ import annotations

from importlib.util import find_spec

from envgen.errors import UsageError

EXTRAS = {"bench": ("aiohttp", "matplotlib", "scipy")}


def require(extra: str) -> None:
    """UsageError with what to install, unless all libraries of the extra are there."""
    missing = [name for name in EXTRAS[extra] if not _is_there(name)]
    if missing:
        raise UsageError(
            f"this command needs {' and '.join(missing)}, which the extra `{extra}` brings",
            hint=f'run `pip install "envgen[{extra}]"`',
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # imported without a spec
        return True
