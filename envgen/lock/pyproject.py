"""The build requirements of a source, from its pyproject.toml."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

_SECTION = re.compile(r"^\[build-system\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_REQUIRES = re.compile(r"^requires\s*=\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", re.MULTILINE)
_ITEM = re.compile(r"([\"'])\s*([A-Za-z0-9][A-Za-z0-9._-]*).*?\1")


def build_requires(pyproject: str) -> list[str]:
    """The names in ``[build-system] requires``. (No TOML reader is in Python 3.10.)"""
    section = _SECTION.search(pyproject)
    listed = _REQUIRES.search(section[1]) if section else None
    return [canonicalize_name(name) for _, name in _ITEM.findall(listed[1])] if listed else []
