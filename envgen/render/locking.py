"""What a lock changes in a plan: pins in place of names, and steps that leave the same bytes whenever they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from envgen.lock.ask import locked, python_sets
from envgen.lock.model import LOCAL, GitLock, Pinned, ProfileLock, facts_of, load
from envgen.profile.model import Profile, Source
from envgen.profile.values import ImageRef
from envgen.redact import without_login
from envgen.render.parts import WRITTEN

LOCKED = "/run/envgen/locked.txt"  # where a step mounts its list of packages
HASHED = ("--no-deps", "--require-hashes", "-r", LOCKED)
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def base_image(image: ImageRef, lock: ProfileLock | None) -> str:
    """The name after FROM; with the digest, unless only one engine knows the image."""
    if lock is None or lock.base is None or lock.base.resolved == LOCAL or image.digest:
        return str(image)
    return f"{image}@{lock.base.digest}"


def git_words(lock: GitLock | None, ref: str) -> tuple[str, str]:
    """(what to fetch, the full name under which a locked commit was found)."""
    if lock is None:
        return ref, ""
    folder = {"tag": "refs/tags/", "branch": "refs/heads/"}.get(lock.kind, "")
    return lock.commit, "" if lock.kind == "commit" else ref if ref.startswith("refs/") else folder + ref


def sdist_hash(name: str, lock: ProfileLock | None) -> tuple[str, ...]:
    """The sha256 that a source distribution must have, if the lock knows it."""
    step = f"sdist.{name}"
    found = {pin.hashes for python in (lock.python.values() if lock else ()) for pin in python.sets.get(step, ())}
    return found.pop()[:1] if len(found) == 1 else ()


def requirements(profile: Profile, lock: ProfileLock | None) -> dict[str, str]:
    """The list of packages for each step that is locked; "" = it needs none besides what is there."""
    if lock is None or not lock.python:
        return {}
    found = {}
    for wanted in python_sets(profile):
        if wanted.sdist:
            continue
        pins = {platform: python.sets.get(wanted.name) for platform, python in sorted(lock.python.items())}
        if all(value is not None for value in pins.values()):
            found[wanted.name] = _requirements({p: v for p, v in pins.items() if v is not None})
    return found


def _requirements(pins: Mapping[str, tuple[Pinned, ...]]) -> str:
    """Lines for pip and uv. Where platforms differ, each line says for which it is."""
    versions: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for platform, each in pins.items():
        for pin in each:
            versions.setdefault((pin.name, pin.version), {})[platform] = pin.hashes
    lines = []
    for (name, version), platforms in sorted(versions.items()):
        marker = ""
        if len(platforms) < len(pins):
            tests = [f'platform_machine == "{_MACHINES[p]}"' for p in platforms if p in _MACHINES]
            marker = f" ; {' or '.join(tests)}" if tests else ""
        hashes = sorted({digest for each in platforms.values() for digest in each})
        lines.append(f"{name}=={version}{marker} " + " ".join(f"--hash=sha256:{digest}" for digest in hashes) + "\n")
    return "".join(lines)


def apt_words(lock: ProfileLock | None, step: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The packages of a step: as named, or all that it brings at exact versions (by architecture where they differ)."""
    if lock is None or not lock.apt:
        return names
    lists = {p: apt.build if step == "build" else apt.runtime for p, apt in sorted(lock.apt.items())}
    unique = set(lists.values())
    if len(unique) == 1:
        return unique.pop() or names  # nothing to bring: all of it is in the base image, which the lock names
    words: list[str] = []
    for platform, each in lists.items():
        words += ["--arch", platform.rpartition("/")[2], *each]
    return tuple(words)


def manifest(profile: Profile, lock: ProfileLock | None) -> str:
    """What the image itself can tell about its inputs."""
    if lock is None:
        return ""
    document = {
        "#": WRITTEN,
        "format": 1,
        "project": profile.project,
        "profile": profile.name,
        "lock": lock.digest,
        "epoch": lock.epoch,
        "inputs": facts_of(lock),
        "sources": {name: _source(source) for name, source in profile.sources.items()},
        "open": sorted({f"{step}: {why}" for python in lock.python.values() for step, why in python.open.items()}),
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _source(source: Source) -> dict[str, str]:
    """What a source is called as a package, where it is from, and which series of patches is meant for it."""
    origin = source.origin
    asked = (
        f"{without_login(origin.git)} {origin.git_ref}"
        if origin.git
        else str(origin.pypi or origin.wheel or origin.folder or "")
    )
    patches = source.patches if source.patches and origin.kind != "checkout" else ""
    return {"distribution": source.distribution, "kind": origin.kind, "origin": asked, "patches": patches}


LABEL = "dev.envgen.lock"


def lock_of(profile: Profile, root: Path) -> ProfileLock | None:
    """What envgen.lock says about ``profile``; None where there is no such file."""
    lock = load(root)
    return locked(profile, lock) if lock else None


def lock_of_image(profile: Profile, root: Path, labels: Mapping[str, str] | None) -> ProfileLock | None:
    """The lock to compare an image by. One that says itself that it was built without a lock is compared without."""
    return None if labels is not None and labels.get(LABEL) == "" else lock_of(profile, root)
