"""The lock: every input of a project, resolved; its file; the comparison of two locks.

Entries are kept by what was resolved (an image's name, a repository and a ref), so a profile with another image or ref
finds no entry: its input is stale. The Python and Debian packages of a profile carry ``asks``, a digest of everything
that determines them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name

from envgen import files
from envgen.binding import digest_of
from envgen.errors import Place, Problem, ProjectError, RefusedError
from envgen.profile.tree import YamlNode, label_of, read
from envgen.redact import without_login

# Where an image's digest is from: its registry, or only the local engine.
REGISTRY, LOCAL = "registry", "local"

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
    """A git ref: its commit (of a tag: what it points at). The commit names those of its submodules."""

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
class PatchLock:
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.file} {self.sha256}"


@dataclass(frozen=True)
class PythonLock:
    """The Python packages of one profile on one platform, by step. ``open``: step -> why it could not be locked."""

    asks: str
    python: str
    sets: Mapping[str, tuple[Pinned, ...]]
    open: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AptLock:
    """The Debian packages that the steps of one profile install on one platform, as name=version.

    Recorded and compared, not enforced: an archive drops a version as soon as there is a newer one.
    """

    asks: str
    build: tuple[str, ...]
    runtime: tuple[str, ...]


@dataclass(frozen=True)
class Lock:
    """A whole envgen.lock."""

    images: Mapping[str, ImageLock] = field(default_factory=dict)
    git: Mapping[str, GitLock] = field(default_factory=dict)  # by git_key
    files: Mapping[str, str] = field(default_factory=dict)  # address -> sha256
    patches: Mapping[str, tuple[PatchLock, ...]] = field(default_factory=dict)
    python: Mapping[str, Mapping[str, PythonLock]] = field(default_factory=dict)  # profile -> platform
    apt: Mapping[str, Mapping[str, AptLock]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)  # by model_key -> commit


@dataclass(frozen=True)
class ProfileLock:
    """The part of a lock for one profile. Its digest is the label of the image."""

    base: ImageLock | None
    git: Mapping[str, GitLock]  # source -> its commit
    files: Mapping[str, str]
    patches: Mapping[str, tuple[PatchLock, ...]]
    python: Mapping[str, PythonLock]  # platform -> packages
    apt: Mapping[str, AptLock]

    @property
    def epoch(self) -> int:
        """The time stamp of every file that a build adds: later than all files of the base image."""
        return max(EPOCH, self.base.created + 1 if self.base else 0)

    def version(self, distribution: str) -> str:
        """The locked version of a Python package; "" where none is locked, or platforms differ."""
        name = canonicalize_name(distribution)
        pins = (pin for python in self.python.values() for pins in python.sets.values() for pin in pins)
        found = {pin.version for pin in pins if pin.name == name}
        return found.pop() if len(found) == 1 else ""

    @property
    def digest(self) -> str:
        """Changes with any locked input of this profile."""
        base = self.base and [dict(self.base.platforms), self.base.created, self.base.resolved == LOCAL]
        return digest_of(3, {"base": base, "inputs": facts_of(self)})


def git_key(url: str, ref: str) -> str:
    """The key of a git ref in the lock."""
    return f"{url} {ref}"


def model_key(repo: str, revision: str) -> str:
    """The key of a model's revision in the lock."""
    return f"{repo} {revision}"


# --- the file ---------------------------------------------------------------------------------------------------------

FILE_NAME = "envgen.lock"
HEAD = f"""\
# Written by `envgen lock`: every input of envgen.yaml, as last resolved. Commit it; don't edit it.
# `envgen lock` adds what is missing, `envgen lock --upgrade NAME` moves one input, `envgen lock --check` compares.
format: {FORMAT}
"""


def text_of(lock: Lock) -> str:
    """The whole file: sorted, so that it diffs well."""
    filled = {key: _written(value) for key, value in vars(lock).items() if value}
    return HEAD + (yaml.safe_dump(filled, width=10_000) if filled else "")


_OF_THE_KEY = ("name", "url", "ref")  # of images and git refs: they are in the key


def _written(value: Any) -> Any:
    """As written in the file."""
    if isinstance(value, tuple):
        # The order of patches and Debian packages counts.
        return sorted(map(str, value)) if value and isinstance(value[0], Pinned) else list(map(str, value))
    if isinstance(value, (ImageLock, GitLock, PythonLock, AptLock)):
        value = {key: one for key, one in vars(value).items() if key not in _OF_THE_KEY}
    return {key: _written(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def save(path: Path, lock: Lock) -> bool:
    """Put the whole file in place, or leave the old one. False when nothing changed."""
    content = text_of(lock).encode()
    with contextlib.suppress(OSError):
        if files.read(path) == content:
            return False
    files.write(files.inside(path, path.parent), content)
    return True


def exclusive(state: Path) -> contextlib.AbstractContextManager[None]:
    """One `envgen lock` per project at a time."""

    def refuse(holder: str) -> None:
        raise RefusedError(f"another `envgen lock` is running in this project: {holder}", hint="wait until it ends")

    return files.locked(state / "lock.lock", within=state.parents[1], on_wait=refuse)


@dataclass(frozen=True)
class _Text:
    """A scalar: its pattern, in words, and its constructor."""

    what: str
    pattern: str = r"(?s).*"
    make: Callable[[str], Any] = str


@dataclass(frozen=True)
class _Record:
    """A mapping with these keys. ``make`` gets the mapping's own key, and its values by name."""

    make: Callable[..., Any]
    keys: Mapping[str, Any]


def _git(key: str, commit: str, kind: str) -> GitLock:
    url, _, ref = key.rpartition(" ")
    return GitLock(url, ref, commit, kind)


def _pinned(text: str) -> Pinned:
    package, *hashes = text.split(" ")
    name, _, version = package.partition("==")
    return Pinned(name, version, tuple(hashes))


_SHA, _COMMIT = r"[0-9a-f]{64}", r"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_ANY = "*"  # any key
_DIGEST = _Text("sha256: and 64 digits", rf"sha256:{_SHA}")
_IMAGE = {
    "digest": _DIGEST,
    "platforms": {_ANY: _DIGEST},
    "resolved": _Text("how", "registry|local"),
    "created": _Text("seconds", "[0-9]{1,12}", int),
}
_GIT = {
    "commit": _Text("a commit of 40 hexadecimal digits", _COMMIT),
    "kind": _Text("a kind", "tag|branch|commit|pull"),
}
_PYTHON = {
    "asks": _Text("a digest"),
    "python": _Text("a version"),
    "sets": {_ANY: [_Text("a package, its version and the sha256 of its files", rf"[^ ]*==[^ ]*( {_SHA})+", _pinned)]},
    "open": {_ANY: _Text("a reason")},
}
_APT = {"asks": _Text("a digest"), "build": [_Text("text")], "runtime": [_Text("text")]}
_PATCH = _Text("a file and its sha256", rf"[^ ]* {_SHA}", lambda text: PatchLock(*text.split(" ")))
# The shape of the file. A mapping with _ANY may be missing; a list has the shape of its items.
_FILE = _Record(
    lambda _key, format, **found: Lock(**found),
    {
        "format": _Text("a number"),
        "images": {_ANY: _Record(ImageLock, _IMAGE)},
        "git": {_ANY: _Record(_git, _GIT)},
        "files": {_ANY: _Text("a sha256", _SHA)},
        "patches": {_ANY: [_PATCH]},
        "models": {_ANY: _Text("a commit", _COMMIT)},
        "python": {_ANY: {_ANY: _Record(lambda _key, **found: PythonLock(**found), _PYTHON)}},
        "apt": {_ANY: {_ANY: _Record(lambda _key, **found: AptLock(**found), _APT)}},
    },
)


def load(root: Path) -> Lock | None:
    """The lock of the project in ``root``; None where there is none. Raises ProjectError with all problems."""
    path = root / FILE_NAME
    return read_lock(path) if path.exists() else None


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises ProjectError with all problems."""
    top = read(path, label_of(path))
    version = top.items.get("format")
    if version is None or version.text != str(FORMAT):
        place = version.place("format") if version else Place(top.source.label)
        message = f"this envgen reads lock files of format {FORMAT}" + (f", not {version.text}" if version else "")
        hint = "use the envgen that wrote it; or remove the file and run `envgen lock`"
        raise ProjectError([Problem(message, place, hint)])
    problems: list[Problem] = []
    found: Lock = _read(top, _FILE, "", "", problems)
    if problems:
        raise ProjectError(problems)
    return found


def _read(node: YamlNode, shape: Any, key: str, name: str, problems: list[Problem]) -> Any:
    """The value at ``node``, whose key is ``name``; None, with a problem, where it does not have this ``shape``."""

    def bad(message: str, at: YamlNode = node, where: str = key) -> None:
        hint = f"`git checkout {FILE_NAME}`; or remove the file and run `envgen lock`"
        problems.append(Problem(message, at.place(where), hint))

    if isinstance(shape, _Text):
        if node.kind in ("map", "list", "null") or not re.fullmatch(shape.pattern, node.text):
            return bad(f"expected {shape.what}, found {node.seen()}")
        return shape.make(node.text)
    if isinstance(shape, list):
        if node.kind != "list":
            return bad("expected a list")
        return tuple(_read(child, shape[0], key, "", problems) for child in node.elements)
    keys = shape.keys if isinstance(shape, _Record) else {}
    if not keys and (node.kind == "null" or (node.kind == "list" and not node.items)):
        return {}
    if node.kind != "map":
        return bad(f"expected a mapping, found {node.seen()}")
    found: dict[str, Any] = {}
    before = len(problems)
    for child_name, child in node.items.items():
        where = f"{key}.{child_name}".lstrip(".")
        if (inner := keys.get(child_name) if keys else shape[_ANY]) is None:
            bad("unknown key", child, where)
        else:
            found[child_name] = _read(child, inner, where, child_name, problems)
    for missing in (name for name in keys if name not in node.items):
        found[missing] = {}
        if not isinstance(keys[missing], dict):
            bad(f"{missing} is missing", where=f"{key}.{missing}".lstrip("."))
    if not keys:
        return found
    return shape.make(name, **found) if len(problems) == before else None


# --- compared ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputChange:
    """One input that differs. "": missing on that side; ``#`` and a digest: its value is not shown."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if "#" in (self.before[:1], self.after[:1]):
            return f"{self.name} {'was added' if not self.before else 'was removed' if not self.after else 'changed'}"
        return f"{self.name}: {_short(self.before) or 'nothing'} → {_short(self.after) or 'nothing'}"


def _short(value: str) -> str:
    """Shortens digests and commits."""
    head, colon, rest = value.partition(":")
    if head == "sha256" and len(rest) >= 64:
        return f"{head}{colon}{rest[:12]}" + rest[64:]
    return value[:12] if len(value) >= 40 and not value[:40].strip("0123456789abcdef") else value


def facts(lock: Lock) -> dict[str, str]:
    """Every input of a lock by the name that users know."""
    found = {f"image {name}": image.digest for name, image in lock.images.items()}
    found |= {f"git {without_login(one.url)} {one.ref}": one.commit for one in lock.git.values()}
    found |= {f"file {url}": sha256 for url, sha256 in lock.files.items()}
    for folder, series in lock.patches.items():
        found |= {f"patch {folder}/{patch.file}": patch.sha256 for patch in series}
        found[f"series {folder}"] = ", ".join(patch.file for patch in series)
    found |= {f"model {key}": commit for key, commit in lock.models.items()}
    for profile, pythons in lock.python.items():
        for platform, python in pythons.items():
            head = f"{profile} {platform}".lstrip()
            found[f"{head} python"] = python.python
            for name, pins in python.sets.items():
                found |= {f"{head} pip {name} {pin.name}": pin.version for pin in pins}
                found |= {f"{head} pip {name} {pin.name} sha256": " ".join(sorted(pin.hashes)) for pin in pins}
    for profile, apts in lock.apt.items():
        for platform, apt in apts.items():
            for step, words in (("build", apt.build), ("runtime", apt.runtime)):
                for name, _, version in (word.partition("=") for word in words):
                    found[f"{profile} {platform} apt {step} {name}".lstrip()] = version
    return found


def facts_of(mine: ProfileLock) -> dict[str, str]:
    """The same for one profile; its packages without the profile's name."""
    images = {mine.base.name: mine.base} if mine.base else {}
    return facts(Lock(images, mine.git, mine.files, mine.patches, {"": mine.python}, {"": mine.apt}))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[InputChange]:
    """What differs, by name. Hashes count only where the version is the same."""
    found = []
    for name in sorted({*before, *after}):
        old, new, plain = before.get(name, ""), after.get(name, ""), name.removesuffix(" sha256")
        if old != new and (plain == name or before.get(plain) == after.get(plain)):
            found.append(InputChange(name, old, new))
    return found
