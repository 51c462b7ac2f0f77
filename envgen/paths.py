"""Where envgen's own data is: in a checkout at the top, in an installed wheel inside the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    """The folder of the Jinja2 templates. Raises FileNotFoundError when the install is broken."""
    return _find("templates")


def docker_dir() -> Path:
    """The folder of the programs that run in builds and containers. FileNotFoundError when the install is broken."""
    return _find("docker")


def _find(name: str) -> Path:
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"envgen is installed without its {name} (looked beside {_PACKAGE}); reinstall it")
