"""What ``envgen --version`` prints: enough for a bug report."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import envgen
from envgen.engine.git import WorkTree
from envgen.errors import EnvgenError


def report() -> list[str]:
    """Lines: the version, with its commit if known; then Python and the required packages."""
    commit = _commit()
    lines = [f"envgen {envgen.__version__}" + (f" (commit {commit})" if commit else "")]
    try:
        wanted = [Requirement(line) for line in metadata.requires("envgen") or ()]
        packages = [f"{one.name} {metadata.version(one.name)}" for one in wanted if one.marker is None]
    except metadata.PackageNotFoundError:  # run from a folder, never installed
        packages = []
    return [*lines, ", ".join([f"Python {platform.python_version()}", *sorted(packages)])]


def _commit() -> str:
    """The commit of the checkout that envgen runs from, or of the repository that pip installed it from; or ""."""
    top = Path(envgen.__file__).resolve().parents[1]
    try:
        if (top / ".git").exists():
            return WorkTree(top).head[:12]
        found = json.loads(metadata.distribution("envgen").read_text("direct_url.json") or "{}")
        return str(found["vcs_info"]["commit_id"])[:12]
    except (EnvgenError, OSError, ValueError, TypeError, KeyError, metadata.PackageNotFoundError):
        return ""
