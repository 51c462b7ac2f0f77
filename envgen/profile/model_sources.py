"""Sources in the model of a project file: where each comes from, and how it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.profile import patterns as p
from envgen.profile.keys import key
from envgen.profile.values import ContainerPath, HostPath, Pin

ORIGIN_KINDS = ("git", "pypi", "wheel", "folder", "checkout")


@dataclass(frozen=True)
class Origin:
    """Where a source is from: ``git`` (with ``ref`` or ``pull``), ``pypi``, ``wheel``, ``folder`` or ``checkout``."""

    git: str | None = key("Address of a git repository; with ref or pull.", None, item=p.GIT_URL)
    ref: str | None = key("A branch, tag or commit.", None, item=p.GIT_REF)
    pull: int | None = key("The number of a pull request on GitHub.", None, low=1, high=9_999_999)
    pypi: Pin | None = key("A source distribution on the package index, at an exact version.", None)
    wheel: Pin | None = key("A built wheel on the package index, at an exact version: nothing is compiled.", None)
    folder: HostPath | None = key(
        "A folder of this project, copied into the build. The image counts as outdated when a file in it changes.", None
    )
    checkout: HostPath | None = key("A checkout on this machine, mounted (development only).", None)

    @property
    def kind(self) -> str:
        """``git``, ``pypi``, ``wheel``, ``folder`` or ``checkout``."""
        return next((kind for kind in ORIGIN_KINDS if getattr(self, kind) is not None), "checkout")

    @property
    def is_built(self) -> bool:
        """Whether an image build makes its wheel."""
        return self.kind in ("git", "pypi", "folder")

    @property
    def git_ref(self) -> str:
        """What ``git fetch`` is asked for; empty unless ``kind`` is ``git``."""
        return f"refs/pull/{self.pull}/head" if self.pull is not None else self.ref or ""


@dataclass(frozen=True)
class Repository:
    """A git repository that is fetched into, or beside, a source."""

    git: str = key("Address of a git repository.", item=p.GIT_URL)
    ref: str = key("A branch, tag or commit.", item=p.GIT_REF)


@dataclass(frozen=True)
class Input:
    """A repository that a source's build would fetch by itself, and takes from a folder where a variable names one."""

    git: str = key("Address of a git repository.", item=p.GIT_URL)
    ref: str = key("A branch, tag or commit.", item=p.GIT_REF)
    variable: str = key("The variable that gives the build its path, such as VLLM_CUTLASS_SRC_DIR.", item=p.ENV_NAME)
    folder: str | None = key("The folder in it that the build wants; unset: all of it.", None, item=p.INNER_PATH)


@dataclass(frozen=True)
class Install:
    requires: tuple[str, ...] = key(
        "What must be installed before it can be built; of a mounted source, unset: what its pyproject.toml and build"
        " backend ask for.",
        (),
        item=p.REQUIREMENT,
    )
    env: Mapping[str, str] = key("Variables for its build alone.", {}, names=p.ENV_NAME)
    prepare: tuple[str, ...] = key("A command to run in the source before it is built, one word an item.", ())
    inputs: Mapping[str, Input] = key(
        "Repositories that its build would fetch without being asked: fetched here, and locked.", {}, names=p.NAME
    )
    dependencies: bool = key("Also install what it depends on (never what pip.protect names).", False)


@dataclass(frozen=True)
class Source:
    origin: Origin = key("Where it comes from.")
    package: str = key("The name that Python imports.", item=p.MODULE)
    distribution: str = key("The name that pip knows.", item=p.DISTRIBUTION)
    mount: ContainerPath = key("Where its checkout is in the container.")
    submodules: bool = key("Fetch its git submodules.", True)
    submodule_origins: Mapping[str, Repository] = key(
        "Submodules that come from elsewhere, such as a fork of CUTLASS, by their path in the source.",
        {},
        names=p.INNER_PATH,
    )
    patches: str | None = key(
        "The folder below patches/ whose series is applied (never to a mounted checkout).", None, item=p.NAME
    )
    console_scripts: tuple[str, ...] = key(
        "Commands that it installs; doctor checks what they import.", (), item=p.COMMAND
    )
    install: Install = key("How it is built and installed.", Install())
