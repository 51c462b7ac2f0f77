"""What a Dockerfile is printed from: frozen records without any logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgen.patches.series import Patch


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
class PipStep:
    """One call of pip-install. ``locked``: the list of packages with hashes that it reads, if there is one."""

    words: tuple[str, ...]
    locked: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltSource:
    """A source that is fetched, patched and built. Fields that hold at most one item say whether the step is there."""

    name: str
    label: str
    folder: str
    fetch_git: tuple[tuple[str, ...], ...]
    fetch_sdist: tuple[tuple[str, ...], ...]
    patch_source: tuple[PatchStep, ...]
    requires: tuple[PipStep, ...]
    env: tuple[tuple[Pair, ...], ...]
    build_words: tuple[str, ...]


@dataclass(frozen=True)
class InstallStep:
    """One source into the finished image: the wheel of its own stage, or a pinned wheel of the package index.

    ``before``: what is installed in the same step before it.
    """

    wheel_of: tuple[str, ...]
    words: tuple[str, ...]
    locked: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class MountedSource:
    """A source whose checkout is mounted; ``manifest`` is what envgen-install in the container reads."""

    name: str
    mount: str
    variable: str
    default: str | None
    manifest: Mapping[str, object]


@dataclass(frozen=True)
class EncodingFile:
    files: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class EncodingStage:
    directory: str
    files: tuple[EncodingFile, ...]


@dataclass(frozen=True)
class Plan:
    """What a Dockerfile is printed from."""

    profile: str
    project: str
    description: str
    development: bool
    dockerfile: str
    image: str
    platform: str
    base_image: str
    python: str
    first_python: str  # the stage that has the interpreter first: the base image itself, or what is made of it
    protect_words: tuple[str, ...]
    apt_build: tuple[tuple[str, ...], ...]
    apt_runtime: tuple[tuple[str, ...], ...]
    deps: tuple[PipStep, ...]
    built: tuple[BuiltSource, ...]
    installs: tuple[InstallStep, ...]
    mounted: tuple[MountedSource, ...]
    build_env: tuple[Pair, ...]
    ccache: tuple[str, ...]
    encodings: tuple[EncodingStage, ...]
    patch_installed: tuple[PatchStep, ...]
    folders: tuple[str, ...]
    working_dir: str
    image_env: tuple[Pair, ...]
    labels: tuple[Pair, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    # With a lock: its lists of packages, those of uv, the time stamp of what is added, and what the image tells.
    requirements: Mapping[str, str] = field(default_factory=dict)
    uv_locked: tuple[str, ...] = ()
    epoch: tuple[str, ...] = ()
    manifest: str = ""

    @property
    def context_files(self) -> tuple[str, ...]:
        """The files of the project that the build reads, relative to it."""
        patches = [patch.path for source in self.built for step in source.patch_source for patch in step.patches]
        patches += [patch.path for step in self.patch_installed for patch in step.patches]
        local = [file for stage in self.encodings for encoding in stage.files for file in encoding.files]
        return tuple(sorted({*patches, *local}))
