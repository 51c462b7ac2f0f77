"""A lock as flat facts, and two of them compared in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.lock.model import AptLock, GitLock, ImageLock, Lock, PatchLock, ProfileLock, PythonLock
from envgen.redact import without_login


@dataclass(frozen=True)
class Change:
    """One input that differs. "" = it is not there on that side."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.before) or 'nothing'} → {_short(self.after) or 'nothing'}"


def _short(value: str) -> str:
    """Digests and commits by their first digits; versions whole."""
    head, colon, rest = value.partition(":")
    if head == "sha256" and len(rest) >= 64:
        return f"{head}{colon}{rest[:12]}" + rest[64:]
    return value[:12] if len(value) >= 40 and not value[:40].strip("0123456789abcdef") else value


def facts(lock: Lock) -> dict[str, str]:
    """Every input of a lock by a name that a user knows."""
    found = _shared(lock.images, lock.git, lock.files, lock.patches)
    found |= {f"model {key}": commit for key, commit in lock.models.items()}
    for profile in lock.python:
        for platform, python in lock.python[profile].items():
            found |= _python(f"{profile} {platform}", python)
    for profile in lock.apt:
        for platform, apt in lock.apt[profile].items():
            found |= _apt(f"{profile} {platform}", apt)
    return found


def facts_of(mine: ProfileLock) -> dict[str, str]:
    """The same for one profile; its packages without its name in front."""
    images = {mine.base.name: mine.base} if mine.base else {}
    found = _shared(images, {f"{git.url} {git.ref}": git for git in mine.git.values()}, mine.files, mine.patches)
    for platform, python in mine.python.items():
        found |= _python(platform, python)
    for platform, apt in mine.apt.items():
        found |= _apt(platform, apt)
    return found


def _shared(
    images: Mapping[str, ImageLock],
    git: Mapping[str, GitLock],
    files: Mapping[str, str],
    patches: Mapping[str, tuple[PatchLock, ...]],
) -> dict[str, str]:
    found = {f"image {name}": image.digest for name, image in images.items()}
    for one in git.values():
        address = f"git {without_login(one.url)}"
        found[f"{address} {one.ref}"] = one.commit
        found |= {f"{address} {one.ref} submodule {module.path}": module.commit for module in one.submodules}
    found |= {f"file {url}": sha256 for url, sha256 in files.items()}
    for folder, series in patches.items():
        found |= {f"patch {folder}/{patch.file}": patch.sha256 for patch in series}
        found[f"series {folder}"] = ", ".join(patch.file for patch in series)
    return found


def _python(head: str, python: PythonLock) -> dict[str, str]:
    found = {f"{head} python": python.python}
    for name, pins in python.sets.items():
        found |= {f"{head} pip {name} {pin.name}": pin.version for pin in pins}
        found |= {f"{head} pip {name} {pin.name} sha256": " ".join(sorted(pin.hashes)) for pin in pins}
    return found


def _apt(head: str, apt: AptLock) -> dict[str, str]:
    found = {}
    for step, words in (("build", apt.build), ("runtime", apt.runtime)):
        for word in words:
            name, _, version = word.partition("=")
            found[f"{head} apt {step} {name}"] = version
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What differs, by name. Hashes are worth a line only where the version is the same."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old == new:
            continue
        plain = name.removesuffix(" sha256")
        if plain != name and before.get(plain) != after.get(plain):
            continue
        found.append(Change(name, old, new))
    return found
