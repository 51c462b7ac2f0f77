"""What ``envgen --version`` prints: enough for a bug report."""

from __future__ import annotations

import platform
from importlib import metadata

from packaging.requirements import Requirement

import envgen


def report() -> list[str]:
    """Lines: the version; then Python and the required packages."""
    lines = [f"envgen {envgen.__version__}"]
    try:
        wanted = [Requirement(line) for line in metadata.requires("envgen") or ()]
        packages = [f"{one.name} {metadata.version(one.name)}" for one in wanted if one.marker is None]
    except metadata.PackageNotFoundError:  # run from a folder, never installed
        packages = []
    return [*lines, ", ".join([f"Python {platform.python_version()}", *sorted(packages)])]
