"""The lock: the inputs of a project, resolved; its file; the comparison of two locks.

Entries are kept by what was resolved (an image's name, a repository and a ref), so a profile with
another image or ref finds no entry: its input is stale. The Python packages of a profile carry
``asks``, a digest of everything that determines them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import VERSION_PATTERN

from envgen import files
from envgen.binding import JsonDict, JsonObject, ShapeError, bind, digest_of
from envgen.errors import LockError, Place, Problem, ProjectError
from envgen.profile.service import ModelRef
from envgen.profile.tree import LIST, MAP, NULL, YamlNode, label_of, read
from envgen.profile.values import Pin
from envgen.redact import without_login
from envgen.text import visible

# Where an image's digest is from: its registry, or only the local engine.
REGISTRY = "registry"
LOCAL = "local"

FORMAT = 1  # of envgen.lock

# The earliest time stamp of a locked build, 2026-01-01: for base images without a creation date.
EPOCH = 1_767_225_600


@dataclass(frozen=True)
class ImageLock:
    """A base image: the digest of its manifest or manifest list, and of each platform's manifest.

    ``resolved: local``: the engine's own image ID, for an image that no registry has.
    ``created``: in seconds; 0: not known.
    """

    name: str
    digest: str
    platforms: Mapping[str, str] = field(default_factory=dict)
    resolved: str = REGISTRY
    created: int = 0


@dataclass(frozen=True)
class GitLock:
    """A git ref: its commit (of a tag: what it points at). The commit names those of its
    submodules.
    """

    url: str
    ref: str
    commit: str
    kind: str = "branch"  # tag, branch, commit or pull


@dataclass(frozen=True)
class Pinned:
    """A Python package at one version, and the SHA-256 of the files that fit the platform."""

    name: str
    version: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.name}=={self.version}", *sorted(self.hashes)))


@dataclass(frozen=True)
class PythonLock:
    """The Python packages of one profile on one platform, by step.

    ``open``: step -> why it could not be locked. ``assumes``: of packages that were resolved
    without their base image, what it must have: ``python==3.12``, then packages.
    """

    asks: str
    python: str
    sets: Mapping[str, tuple[Pinned, ...]]
    open: Mapping[str, str] = field(default_factory=dict)
    assumes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lock:
    """A whole envgen.lock.

    ``read``: entry of another part -> where its digest or commit was read. No server was asked for
    it yet; `envgen lock` asks, and the entry leaves this list.
    """

    images: Mapping[str, ImageLock] = field(default_factory=dict)
    git: Mapping[str, GitLock] = field(default_factory=dict)  # by git_key
    # profile -> platform
    python: Mapping[str, Mapping[str, PythonLock]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)  # by model_key -> commit
    read: Mapping[str, str] = field(default_factory=dict)

    def commit_of(self, model: ModelRef) -> str:
        """Its commit; "" if it is not locked."""
        return self.models.get(model_key(model.repo, model.revision), "")


@dataclass(frozen=True)
class ProfileLock:
    """The part of a lock for one profile. Its digest is the label of the image."""

    base: ImageLock | None
    git: Mapping[str, GitLock]  # source -> its commit
    python: Mapping[str, PythonLock]  # platform -> packages

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the base image must have for the packages, which were resolved without it."""
        return tuple(sorted({word for python in self.python.values() for word in python.assumes}))

    @property
    def epoch(self) -> int:
        """The time stamp of every file that a build adds: later than all files of the base image."""
        return max(EPOCH, self.base.created + 1 if self.base else 0)

    def version(self, distribution: str) -> str:
        """The locked version of a Python package; "" where none is locked, or platforms differ."""
        versions = {pin.version for pin in self.pins(distribution)}
        return versions.pop() if len(versions) == 1 else ""

    def pins(self, distribution: str) -> tuple[Pinned, ...]:
        """What the lock has of a Python package, for each platform and step."""
        sets = (pins for python in self.python.values() for pins in python.sets.values())
        name = canonicalize_name(distribution)
        return tuple(pin for pins in sets for pin in pins if pin.name == name)

    @property
    def digest(self) -> str:
        """Changes with any locked input of this profile."""
        base = self.base and [
            dict(self.base.platforms),
            self.base.created,
            self.base.resolved == LOCAL,
        ]
        return digest_of(5, {"base": base, "inputs": facts_of(self)})


def with_version(pin: Pin, lock: ProfileLock | None) -> Pin:
    """``pin`` at its locked version, if it has none of its own."""
    return pin if pin.version or lock is None else replace(pin, version=lock.version(pin.name))


def git_key(url: str, ref: str) -> str:
    """The key of a git ref in the lock."""
    return f"{url} {ref}"


def model_key(repo: str, revision: str) -> str:
    """The key of a model's revision in the lock."""
    return f"{repo} {revision}"


# --- the file
# ---------------------------------------------------------------------------------------------------------

FILE_NAME = "envgen.lock"
HEAD = f"""\
# Written by `envgen lock`: the inputs of envgen.yaml, as last resolved. Commit it; don't edit it.
# `envgen lock` adds what is missing, `envgen lock --upgrade NAME` moves one input, `envgen lock --check` compares.
format: {FORMAT}
"""


def lock_text(lock: Lock) -> str:
    """The whole file: sorted, so that it diffs well."""
    filled = {key: _written(value) for key, value in vars(lock).items() if value}
    return HEAD + (yaml.safe_dump(filled, width=10_000) if filled else "")


_APART = ("name", "url", "ref")  # of images and git refs: in the key


def _written(value: Any) -> Any:
    """As written in the file."""
    if isinstance(value, tuple):
        return sorted(map(str, value))
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items()}
    if isinstance(value, (PythonLock, ImageLock, GitLock)):
        entry = {key: _written(one) for key, one in vars(value).items()}
        if isinstance(value, PythonLock):
            return {**entry, "sum": _sum(entry)}
        return {key: one for key, one in entry.items() if key not in _APART}
    return value


def _sum(entry: JsonObject) -> str:
    """A digest of the packages of one platform. They were resolved together: whatever a merge or a
    hand changes in one of them needs a new resolution.
    """
    parts = {key: entry.get(key) or {} for key in ("python", "open")}
    if entry.get("assumes"):
        parts["assumes"] = sorted(entry["assumes"])
    sets = entry.get("sets") or {}
    parts["sets"] = {step: sorted(pins) for step, pins in sets.items()}
    digest = digest_of(1, parts)
    return digest[:16]


def save(path: Path, lock: Lock) -> bool:
    """Put the whole file in place, or leave the old one. False when nothing changed.

    LockError where an answer is none that the file may hold.
    """
    try:
        _checked(lock)
    except ShapeError as error:
        raise LockError(f"an answer is not what a lock holds: {error}") from None
    content = lock_text(lock).encode()
    with suppress(OSError):
        if files.read(path) == content:
            return False
    files.write(files.inside(path, path.parent), content)
    return True


def _plain(node: YamlNode) -> Any:
    """A node as objects, lists and text, without the keys that have no value."""
    if node.kind == MAP:
        return {key: _plain(one) for key, one in node.items.items() if one.kind != NULL}
    if node.kind == LIST:
        return [_plain(one) for one in node.elements]
    return node.text


def _shaped(document: Any) -> JsonDict:
    """The document of a file in the shape of ``Lock``: with the fields that are written as a key,
    or as one text.
    """
    images = {}
    for name, image in document.get("images", {}).items():
        created = int(image.get("created", 0))
        images[name] = {"name": name, **image, "created": created}
    git = {}
    for key, commit in document.get("git", {}).items():
        url, _, ref = key.rpartition(" ")
        git[key] = {"url": url, "ref": ref, **commit}
    python = {}
    for profile, platforms in document.get("python", {}).items():
        python[profile] = {name: _resolved(one) for name, one in platforms.items()}
    return {
        **document,
        "images": images,
        "git": git,
        "python": python,
    }


def _resolved(entry: Any) -> JsonDict:
    """The packages of one platform; out of date where they are not those that were written."""
    fields = {**entry, "sets": _pinned(entry.get("sets", {}))}
    if entry.get("sum") != _sum(entry):
        fields["asks"] = ""
    return fields


def _pinned(sets: Any) -> JsonDict:
    pinned = {}
    for step, texts in sets.items():
        pins = []
        for text in texts:
            requirement, *hashes = text.split(" ")
            name, version = requirement.split("==")
            pins.append({"name": name, "version": version, "hashes": hashes})
        pinned[step] = pins
    return pinned


# What a text of the file is -> its form. They go into Dockerfiles and lists of requirements as they
# are, and reviewers rarely read a lock.
_FORMS = {
    "the name of a package": r"[a-z0-9]+(-[a-z0-9]+)*",  # PEP 503
    "a version": VERSION_PATTERN,  # PEP 440
    "a SHA-256": r"[0-9a-f]{64}",
    "a digest": r"sha256:[0-9a-f]{64}",
    "a commit": r"[0-9a-f]{40}|[0-9a-f]{64}",
    "a platform": r"linux/[a-z0-9]+",
    "a kind of ref": r"tag|branch|commit|pull",
    "a way to resolve": rf"{REGISTRY}|{LOCAL}",
    "what a base image has": r"[a-z0-9]+(-[a-z0-9]+)*==[a-z0-9.+!]+",
}
_FORM = {what: re.compile(form, re.A | re.I | re.X) for what, form in _FORMS.items()}
_LATEST = 1 << 32  # of time stamps, in seconds: formats of archives have 32 bits


def _texts(lock: Lock) -> Iterator[tuple[str, str, str]]:
    """(where, what it must be, text) of each text with a form."""
    for name, image in lock.images.items():
        where = f"images.{name}"
        yield where, "a digest", image.digest
        yield where, "a way to resolve", image.resolved
        for platform, digest in image.platforms.items():
            yield where, "a platform", platform
            yield where, "a digest", digest
    for key, git in lock.git.items():
        yield f"git.{key}", "a commit", git.commit
        yield f"git.{key}", "a kind of ref", git.kind
    for key, commit in lock.models.items():
        yield f"models.{key}", "a commit", commit
    for profile, platforms in lock.python.items():
        for platform, python in platforms.items():
            where = f"python.{profile}.{platform}"
            yield where, "a platform", platform
            yield where, "a version", python.python
            for word in python.assumes:
                yield where, "what a base image has", word
            for step, pins in python.sets.items():
                yield from _texts_of_pins(f"{where}.{step}", pins)


def _texts_of_pins(where: str, pins: tuple[Pinned, ...]) -> Iterator[tuple[str, str, str]]:
    for pin in pins:
        yield where, "the name of a package", pin.name
        yield where, "a version", pin.version
        # Without a hash, pip would take any file.
        for digest in pin.hashes or ("",):
            yield where, "a SHA-256", digest


def _checked(lock: Lock) -> Lock:
    """The lock, if each of its texts has its form. Raises ShapeError."""
    for where, what, text in _texts(lock):
        if text != text.lower() or not _FORM[what].fullmatch(text):
            raise ShapeError(f"{where}: {visible(text[:80])!r} is not {what}")
    for name, image in lock.images.items():
        known = image.platforms or name in lock.read  # maybe the list's digest alone was read
        if not known or not 0 <= image.created < _LATEST:
            raise ShapeError(f"images.{name} has no platforms, or no time that a build can have")
    return lock


def load(root: Path) -> Lock | None:
    """The lock of the project in ``root``; None where there is none. Raises ProjectError."""
    path = root / FILE_NAME
    return read_lock(path) if path.exists() else None


# In bytes. The packages of a profile take 40 KB for each platform: 50 profiles with two.
LARGEST = 4 << 20
# HEAD: without it git refuses a file whose conflict is not resolved.
_RESTORE = f"`git checkout HEAD -- {FILE_NAME}`; or remove the file and run `envgen lock`"
_MISFIT = (ShapeError, ValueError, TypeError, AttributeError)  # of ``_shaped`` and ``bind``


def read_lock(path: Path) -> Lock:
    """The lock in a file. ProjectError with the first entry that is wrong: the file is generated."""
    try:
        top = read(path, label_of(path), limit=LARGEST)
    except ProjectError as error:
        if path.is_file() and os.access(path, os.R_OK):
            raise ProjectError([replace(error.problems[0], hint=_RESTORE)]) from None
        raise
    version = top.items.get("format")
    if version is None or version.text != str(FORMAT):
        place = version.place("format") if version else Place(top.source.label)
        other = visible(version.text[:40]) or version.seen() if version else ""
        message = f"this envgen reads lock files of format {FORMAT}" + (
            f", not {other}" if other else ""
        )
        hint = "use the envgen that wrote it; or remove the file and run `envgen lock`"
        raise ProjectError([Problem(message, place, hint)])
    try:
        return _checked(bind(Lock, _shaped(_plain(top))))
    except _MISFIT as error:
        why = str(error) if isinstance(error, ShapeError) else "an entry does not have its form"
        raise ProjectError(
            [Problem(f"is not what `envgen lock` writes: {why}", Place(top.source.label), _RESTORE)]
        ) from None


# --- compared
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputChange:
    """One input that differs. "": missing on that side; ``#`` and a digest: its value is not shown."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if "#" in self.before[:1] + self.after[:1]:
            how = "changed"
            if not self.before:
                how = "was added"
            elif not self.after:
                how = "was removed"
            return f"{self.name} {how}"
        before = _short(self.before) or "nothing"
        after = _short(self.after) or "nothing"
        return f"{self.name}: {before} → {after}"


def _short(value: str) -> str:
    """Shortens digests and commits."""
    head, colon, rest = value.partition(":")
    if head == "sha256" and len(rest) >= 64:
        return f"{head}{colon}{rest[:12]}" + rest[64:]
    is_commit = len(value) >= 40 and not value[:40].strip("0123456789abcdef")
    return value[:12] if is_commit else value


def facts(lock: Lock) -> dict[str, str]:
    """Every input of a lock by the name that users know."""
    inputs = {f"image {name}": image.digest for name, image in lock.images.items()}
    inputs |= {f"git {without_login(one.url)} {one.ref}": one.commit for one in lock.git.values()}
    inputs |= {f"model {key}": commit for key, commit in lock.models.items()}
    for profile, pythons in lock.python.items():
        for platform, python in pythons.items():
            head = f"{profile} {platform}".lstrip()
            inputs[f"{head} python"] = python.python
            for name, pins in python.sets.items():
                for pin in pins:
                    key = f"{head} pip {name} {pin.name}"
                    inputs[key] = pin.version
                    inputs[f"{key} sha256"] = " ".join(sorted(pin.hashes))
    return inputs


def facts_of(locked: ProfileLock) -> dict[str, str]:
    """The same for one profile; its packages without the profile's name."""
    images = {locked.base.name: locked.base} if locked.base else {}
    return facts(Lock(images, locked.git, {"": locked.python}))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[InputChange]:
    """What differs, by name. Hashes count only where the version is the same."""
    differences = []
    for name in sorted({*before, *after}):
        old = before.get(name, "")
        new = after.get(name, "")
        if old == new:
            continue
        version = name.removesuffix(" sha256")
        if version == name or before.get(version) == after.get(version):
            differences.append(InputChange(name, old, new))
    return differences
