"""What a Dockerfile is printed from: frozen records without any logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envgen.patches.series import Patch
from envgen.profile.model import Profile

WRITTEN = "Written by `envgen render`"  # in every rendered file; one without it belongs to the user


@dataclass(frozen=True)
class Pair:
    """A variable or label. ``prepend``: what the base image has for it follows, behind a colon."""

    name: str
    value: str
    prepend: bool = False


@dataclass(frozen=True)
class PatchStep:
    """Patches for one step, and the arguments of the commands that apply them."""

    patches: tuple[Patch, ...]
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Step:
    """One command: what it installs, in words for people, and its arguments.

    ``locked``: the list of packages with hashes that it reads (a path in the stage `scripts`), if there is one.
    """

    title: str
    words: tuple[str, ...]
    locked: str = ""


@dataclass(frozen=True)
class BuiltSource:
    """A source that is fetched (by git or as a source distribution), patched and built.

    ``inputs``: the folder of the repositories that its build would fetch itself, if there are any.
    """

    name: str
    label: str
    folder: str
    fetch_git: tuple[tuple[str, ...], ...]
    fetch_sdist: tuple[str, ...]
    patch_source: PatchStep | None
    requires: Step | None
    inputs: str
    env: tuple[Pair, ...]
    build_words: tuple[str, ...]
    copy: str = ""  # the folder of the project that it is


@dataclass(frozen=True)
class InstallStep:
    """One source into the finished image: the wheel of its own stage, or a pinned wheel of the package index.

    ``before``: what is installed in the same step before it.
    """

    title: str
    wheel_of: str
    words: tuple[str, ...]
    locked: str = ""
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncodingFile:
    file: str  # of the project, tried first; "" = none
    words: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a Dockerfile is printed from, besides the profile itself."""

    profile: Profile
    base_image: str
    first_python: str  # the stage that has the interpreter first: the base image itself, or what is made of it
    protect_words: tuple[str, ...]
    apt_build: Step | None
    apt_runtime: Step | None
    deps: Step | None
    built: tuple[BuiltSource, ...]
    installs: tuple[InstallStep, ...]
    build_env: tuple[Pair, ...]
    ccache: str
    encodings: tuple[EncodingFile, ...]
    patch_installed: PatchStep | None
    image_env: tuple[Pair, ...]
    labels: tuple[Pair, ...]
    opened: tuple[str, ...] = ()  # folders that every user may write to
    # With a lock: the list of uv's package, and the time of what is added.
    uv_locked: str = ""
    epoch: str = ""
    reproducible: bool = False  # every step ends by making its times the same in every build
    # Files of this profile alone for the stage `scripts`: path -> text. Some of them are copied into the image.
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def context_files(self) -> tuple[str, ...]:
        """The files of the project that the build reads, relative to it."""
        steps = [self.patch_installed, *(source.patch_source for source in self.built)]
        patches = [patch.path for step in steps if step for patch in step.patches]
        local = [file.file for file in self.encodings if file.file]
        return tuple(sorted({*patches, *local}))
