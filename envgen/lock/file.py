"""envgen.lock on disk: sorted text that diffs well, written whole or not at all. ``reading.py`` reads it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from envgen import files
from envgen.errors import RefusedError
from envgen.lock.model import FORMAT, Lock

FILE_NAME = "envgen.lock"
HEAD = """\
# Written by `envgen lock`: what every input of envgen.yaml was when it was last resolved. Commit it; don't edit it.
# `envgen lock` adds what is missing, `envgen lock --upgrade NAME` moves one input, `envgen lock --check` compares.
"""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/+-]*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def text_of(lock: Lock) -> str:
    """The whole file."""
    out = [HEAD, f"format: {FORMAT}\n"]
    if lock.images:
        out.append("\nimages:\n")
    for name, image in sorted(lock.images.items()):
        tag = name.rpartition("/")[2].partition(":")[2]
        out.append(f"  {_q(name)}:\n    digest: {image.digest}{f'  # {tag}' if tag else ''}\n")
        out += ["    platforms:\n"] if image.platforms else []
        out += [f"      {_q(platform)}: {digest}\n" for platform, digest in sorted(image.platforms.items())]
        out.append(f"    created: {image.created}\n    resolved: {image.resolved}\n")
    if lock.git:
        out.append("\ngit:\n")
    for key, git in sorted(lock.git.items()):
        out.append(f"  {_q(key)}:\n    commit: {git.commit}  # {git.kind} {git.ref}\n    kind: {git.kind}\n")
        out += ["    submodules:\n"] if git.submodules else []
        for module in sorted(git.submodules, key=lambda m: m.path):
            out.append(f"      {_q(module.path)}: {_q(f'{module.commit} {module.url}')}\n")
        out.append(f"    resolved: {git.resolved}\n")
    if lock.files:
        out.append("\nfiles:\n")
    out += [f"  {_q(url)}: {sha256}\n" for url, sha256 in sorted(lock.files.items())]
    if lock.patches:
        out.append("\npatches:\n")
    for folder, patches in sorted(lock.patches.items()):
        out.append(f"  {_q(folder)}:\n" if patches else f"  {_q(folder)}: []\n")
        out += [f"    - {_q(f'{patch.file} {patch.sha256}')}\n" for patch in patches]
    if lock.models:
        out.append("\nmodels:\n")
    out += [f"  {_q(key)}: {commit}\n" for key, commit in sorted(lock.models.items())]
    out += _python_text(lock)
    if lock.apt:
        out.append("\napt:\n")
    for profile, platforms in sorted(lock.apt.items()):
        out.append(f"  {_q(profile)}:\n")
        for platform, apt in sorted(platforms.items()):
            out.append(f"    {_q(platform)}:\n      asks: {_q(apt.asks)}\n")
            for step, words in (("build", apt.build), ("runtime", apt.runtime)):
                out.append(f"      {step}:\n" if words else f"      {step}: []\n")
                out += [f"        - {_q(word)}\n" for word in words]
    return "".join(out)


def _python_text(lock: Lock) -> list[str]:
    out = ["\npython:\n"] if lock.python else []
    for profile, platforms in sorted(lock.python.items()):
        out.append(f"  {_q(profile)}:\n")
        for platform, found in sorted(platforms.items()):
            out.append(f"    {_q(platform)}:\n      asks: {_q(found.asks)}\n      python: {_q(found.python)}\n")
            out += ["      open:\n"] if found.open else []
            out += [f"        {_q(name)}: {_q(reason)}\n" for name, reason in sorted(found.open.items())]
            out.append("      sets:\n" if found.sets else "      sets: {}\n")
            for name, pins in sorted(found.sets.items()):
                out.append(f"        {_q(name)}:\n" if pins else f"        {_q(name)}: []\n")
                for pin in sorted(pins, key=lambda pin: pin.name):
                    words = [f"{pin.name}=={pin.version}", *sorted(pin.hashes)]
                    out.append(f"          - {_q(' '.join(words))}\n")
    return out


def _q(text: str) -> str:
    """Text as a YAML scalar: bare where every reader takes it for text, else in double quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text)


def save(path: Path, lock: Lock) -> bool:
    """Put the whole file in place, or leave the old one. False when it said so already."""
    content = text_of(lock).encode()
    with contextlib.suppress(OSError):
        if files.read(path) == content:
            return False
    files.write(files.inside(path, path.parent), content)
    return True


def exclusive(state: Path) -> contextlib.AbstractContextManager[None]:
    """One `envgen lock` a project at a time."""

    def refuse() -> None:
        raise RefusedError("another `envgen lock` is at work in this project", hint="wait until it has ended")

    return files.locked(state / "lock.lock", within=state.parents[1], on_wait=refuse)
