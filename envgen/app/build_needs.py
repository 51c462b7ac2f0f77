"""What a release's own build needs and the profile doesn't name: found in its source before a build begins."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name

from envgen.errors import Problem
from envgen.patches.trees import Tree
from envgen.profile.model import Profile, Source

PYPROJECT = "pyproject.toml"
_SECTION = re.compile(r"^\[build-system\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_REQUIRES = re.compile(r"^requires\s*=\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", re.MULTILINE)
_ITEM = re.compile(r"([\"'])\s*([A-Za-z0-9][A-Za-z0-9._-]*).*?\1")


def build_requires(pyproject: str) -> list[str]:
    """The names in ``[build-system] requires``. (No TOML reader is in Python 3.10.)"""
    section = _SECTION.search(pyproject)
    listed = _REQUIRES.search(section[1]) if section else None
    return [canonicalize_name(name) for _, name in _ITEM.findall(listed[1])] if listed else []


def unnamed(profile: Profile, source: Source, pyproject: str) -> list[str]:
    """The packages that the source's build asks for, and nothing in the profile installs or protects."""
    given = (*source.install.requires, *profile.pip.protect, *profile.pip.deps, *profile.pip.tools, "pip", "torch")
    names = {canonicalize_name(match[0]) for text in given if (match := re.match(r"[A-Za-z0-9._-]+", text))}
    return [name for name in dict.fromkeys(build_requires(pyproject)) if name not in names]


def script_of(source: Source) -> str:
    """The file of the source that ``install.prepare`` runs; "" where it runs something else."""
    words = source.install.prepare
    interpreted = len(words) > 1 and re.fullmatch(r"(?:ba)?sh|python[0-9.]*", PurePosixPath(words[0]).name) is not None
    return words[1].removeprefix("./") if interpreted and not words[1].startswith(("-", "/")) else ""


def examine(name: str, profile: Profile, tree: Tree) -> tuple[list[Problem], list[str]]:
    """(what certainly stops the build, what may stop it) of one source; patches are not considered."""
    source = profile.sources[name]
    script = script_of(source)
    there = tree.read({PYPROJECT, script} if script else {PYPROJECT})
    problems, notes = list[Problem](), list[str]()
    if script and script not in there:
        moved = sorted(one for one in tree.names() if PurePosixPath(one).name == PurePosixPath(script).name)
        words = ", ".join((source.install.prepare[0], *moved[:1], *source.install.prepare[2:]))
        hint = f"sources: {{{name}: {{install: {{prepare: [{words}]}}}}}}" if moved else "take install.prepare out"
        problems.append(Problem(f"{tree.label} has no {script}, which sources.{name}.install.prepare runs", hint=hint))
    if PYPROJECT in there:
        missing = unnamed(profile, source, there[PYPROJECT].data.decode("utf-8", "replace"))
        if missing:
            wanted, place = ", ".join(missing), f"sources.{name}.install.requires"
            notes.append(
                f"the build of {tree.label} asks for {wanted}: name it in {place}, or have it in the base image"
            )
    return problems, notes
