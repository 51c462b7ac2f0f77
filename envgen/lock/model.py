"""What a lock holds: every input of a project, resolved. Frozen values; ``file.py`` reads and writes them.

Entries are kept by the question that was asked (an image's name, a repository and a ref), so a profile that asks
something else finds no answer, and that is what "stale" means. What was resolved for one profile's Python and Debian
packages carries ``asks``, a digest of everything that the answer depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envgen.digests import digest_of

# How an answer came about: asked of the server that knows, or of the local engine only.
REGISTRY, LOCAL, GIT = "registry", "local", "git"

FORMAT = 1  # of envgen.lock

# The earliest time stamp of a locked build, 2026-01-01: for base images without a creation date.
EPOCH = 1_767_225_600


@dataclass(frozen=True)
class ImageLock:
    """A base image: the digest of its manifest or manifest list, and of each platform's manifest.

    ``resolved: local`` = the engine's own image ID; it was made on that machine and no registry knows it.
    ``created``: when it was made, in seconds; 0 = not known.
    """

    name: str
    digest: str
    platforms: Mapping[str, str] = field(default_factory=dict)
    resolved: str = REGISTRY
    created: int = 0


@dataclass(frozen=True)
class Submodule:
    path: str
    url: str
    commit: str


@dataclass(frozen=True)
class GitLock:
    """A git ref: its commit (of a tag: what it points at), and all submodules at that commit."""

    url: str
    ref: str
    commit: str
    kind: str = "branch"  # tag, branch, commit or pull
    submodules: tuple[Submodule, ...] = ()
    resolved: str = GIT


@dataclass(frozen=True)
class Pinned:
    """A Python package at one version, and the SHA-256 of the files that fit the platform."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class PatchLock:
    file: str
    sha256: str


@dataclass(frozen=True)
class PythonLock:
    """The Python packages of one profile on one platform, by step. ``open``: steps that could not be locked: why."""

    asks: str
    python: str
    sets: Mapping[str, tuple[Pinned, ...]]
    open: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AptLock:
    """The Debian packages that the steps of one profile bring on one platform, as name=version."""

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
    """What a lock says about one profile. Its digest is the label of the image."""

    base: ImageLock | None
    git: Mapping[str, GitLock]  # source -> its commit
    files: Mapping[str, str]
    patches: Mapping[str, tuple[PatchLock, ...]]
    python: Mapping[str, PythonLock]  # platform -> packages
    apt: Mapping[str, AptLock]

    @property
    def epoch(self) -> int:
        """The time stamp of all that a build adds. No file of the base image is newer, so those stay as they are."""
        return max(EPOCH, self.base.created + 1 if self.base else 0)

    @property
    def digest(self) -> str:
        """Changes when anything that is locked for this profile changes."""
        base = self.base
        document = {
            "base": base and [base.name, base.digest, dict(base.platforms), base.created, base.resolved == LOCAL],
            "git": {name: [git.url, git.ref, git.commit, git.kind, _modules(git)] for name, git in self.git.items()},
            "files": dict(self.files),
            "patches": {folder: [[p.file, p.sha256] for p in patches] for folder, patches in self.patches.items()},
            "python": {
                platform: {
                    "python": python.python,
                    "sets": {
                        name: sorted([pin.name, pin.version, *sorted(pin.hashes)] for pin in pins)
                        for name, pins in python.sets.items()
                    },
                }
                for platform, python in self.python.items()
            },
            "apt": {platform: [list(apt.build), list(apt.runtime)] for platform, apt in self.apt.items()},
        }
        return digest_of(1, document)


def _modules(git: GitLock) -> list[list[str]]:
    return sorted([module.path, module.url, module.commit] for module in git.submodules)


def git_key(url: str, ref: str) -> str:
    """Under which a git ref is in the lock."""
    return f"{url} {ref}"


def model_key(repo: str, revision: str) -> str:
    """Under which a model's revision is in the lock."""
    return f"{repo} {revision}"
