"""What a profile needs from the lock, and which of its inputs are stale. Pure; rendering uses the
same decisions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envgen.errors import UsageError
from envgen.lock.model import Lock, Pinned, ProfileLock, PythonLock, git_key, model_key
from envgen.profile.model import Profile
from envgen.profile.service import ModelRef, draft_of
from envgen.profile.tree import suggestion
from envgen.redact import without_login


@dataclass(frozen=True)
class PythonSet:
    """One installation step. ``needs_metadata``: only the dependencies of the source's release are
    resolved.
    """

    name: str
    words: tuple[str, ...]
    own: str = ""
    never: tuple[str, ...] = ()
    dependencies: bool = True
    needs_metadata: bool = False


@dataclass(frozen=True)
class Stale:
    """One input that is missing or out of date. ``name``: for `envgen lock --upgrade`; ``key``: its
    place.
    """

    name: str
    message: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def apt_build(profile: Profile) -> tuple[str, ...]:
    """The profile's build packages and those that the rendered steps themselves need."""
    kinds = {source.origin.kind for source in profile.sources.values()}
    own = (*profile.base.apt, *profile.apt.build)
    needed = ["ca-certificates"]
    # git reads the refs of a mount and applies patches
    if patched(profile) or "checkout" in kinds or repositories(profile):
        needed.append("git")
    if profile.build.ccache and kinds - {"wheel"}:
        needed.append("ccache")
    named = {package.partition("=")[0] for package in own}
    missing = [package for package in needed if package not in named]
    return (*missing, *own)


@dataclass(frozen=True)
class FetchedRepository:
    """A git repository that a build fetches."""

    name: str
    url: str
    ref: str

    @property
    def key(self) -> str:
        """Its key in the lock."""
        return git_key(self.url, self.ref)

    @property
    def source(self) -> str:
        """The source of the profile that it belongs to."""
        return self.name.partition("/")[0].partition(".")[0]


def repositories(profile: Profile) -> tuple[FetchedRepository, ...]:
    """Every git repository that a build of ``profile`` fetches: sources, their submodules' forks,
    builds' inputs.
    """
    fetched = []
    for name, source in profile.sources.items():
        if source.origin.git:
            fetched.append(FetchedRepository(name, source.origin.git, source.origin.ref or ""))
            for path, fork in source.submodule_origins.items():
                fetched.append(FetchedRepository(f"{name}/{path}", fork.git, fork.ref))
        if source.origin.is_built:
            for key, its in source.install.inputs.items():
                fetched.append(FetchedRepository(f"{name}.{key}", its.git, its.ref))
    return tuple(fetched)


def patched(profile: Profile) -> dict[str, str]:
    """source -> the folder of its series, for sources whose patches a build applies."""
    folders = {}
    for name, source in profile.sources.items():
        if source.patches and source.origin.kind != "checkout":
            folders[name] = source.patches
    return folders


def python_sets(profile: Profile) -> tuple[PythonSet, ...]:
    """The installation steps of a profile's image, in order."""
    others = tuple(source.distribution for source in profile.sources.values())
    steps = [PythonSet("uv", ("uv",), dependencies=False)]
    if words := (*profile.pip.tools, *profile.pip.deps):
        steps.append(PythonSet("deps", words, never=others))
    for name, source in profile.sources.items():
        own = source.distribution
        never = tuple(one.distribution for key, one in profile.sources.items() if key != name)
        install = partial(PythonSet, f"install.{name}", own=own, never=never)
        if source.origin.is_built:
            if source.install.requires:
                steps.append(PythonSet(f"requires.{name}", source.install.requires))
            if source.install.dependencies:
                version = source.origin.version
                words = (f"{own}=={version}",) if version else ()
                steps.append(install(words, needs_metadata=True))
        elif source.origin.wheel:
            wheel = (str(source.origin.wheel),)
            steps.append(install(wheel, dependencies=source.install.dependencies))
        elif source.binaries:
            wheel = (str(source.binaries),)
            steps.append(PythonSet(f"binaries.{name}", wheel, own, dependencies=False))
            steps.append(install(wheel, needs_metadata=True))
    return tuple(steps)


def python_asks(profile: Profile, base_digest: str) -> str:
    """A digest of everything that determines the Python packages of a profile."""
    sets = []
    for step in python_sets(profile):
        sets.append([step.name, step.words, step.own, step.never, step.dependencies])
    pip = profile.pip
    base = profile.base
    asked: list[object] = ["python", sets, pip.override, pip.protect, base.python, base_digest]
    for extra in (base.apt, pip.remove, pip.index_variables):
        if extra:
            asked.append(extra)
    return _digest(asked)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def locked(profile: Profile, lock: Lock) -> ProfileLock:
    """The part of ``lock`` for ``profile``, without what is out of date."""
    base = lock.images.get(str(profile.base.image))
    git = {}
    for repository in repositories(profile):
        if repository.key in lock.git:
            git[repository.name] = lock.git[repository.key]
    wanted = profile.base.platform.value if profile.base.platform else ""
    digest = base.digest if base else ""
    asks = python_asks(profile, digest)
    pythons = {}
    for platform, python in lock.python.get(profile.name, {}).items():
        if wanted in ("", platform) and python.asks == asks and fits(python, profile):
            pythons[platform] = python
    return ProfileLock(base=base, git=git, python=pythons)


def fits(python: PythonLock, profile: Profile) -> bool:
    """Whether the lock has what the profile asks for: no step less, none more, and each step only
    packages that it may have.
    """
    steps = {step.name: step for step in python_sets(profile)}
    for name in python.open:
        if name not in steps:
            return False
        if not steps[name].needs_metadata and not python.assumes:
            return False
    if python.sets.keys() != steps.keys() - python.open.keys():
        return False
    off = {canonicalize_name(name) for name in (*profile.pip.override, *profile.pip.remove)}
    try:
        return all(_fits(pins, steps[name], off) for name, pins in python.sets.items())
    except InvalidRequirement:  # no resolver takes it either
        return False


def _fits(pins: Sequence[Pinned], step: PythonSet, off: Collection[str]) -> bool:
    """Whether these can be the packages of a step. A package of the base image has no pin."""
    versions = {pin.name: pin.version for pin in pins}
    if len(versions) != len(pins):
        return False
    if step.name == "uv" and versions.keys() != {"uv"}:
        return False
    never = {*off, *map(canonicalize_name, step.never)}
    never.discard(canonicalize_name(step.own))
    if never & versions.keys():
        return False
    named: dict[str, SpecifierSet] = {}
    for wanted in map(Requirement, step.words):
        named[canonicalize_name(wanted.name)] = wanted.specifier
    if not step.dependencies and versions.keys() - named.keys():
        return False
    both = versions.keys() & named.keys()
    return all(named[name].contains(versions[name], prereleases=True) for name in both)


def stale(profile: Profile, part: ProfileLock, platform: str = "") -> list[Stale]:
    """The inputs of the image that ``part``, the profile's part of the lock, lacks or has out of
    date.

    ``platform``: the one whose packages must be locked; "": any.
    """
    outdated = []
    if part.base is None:
        outdated.append(Stale("base", f"{profile.base.image} is not in the lock", "base.image"))
    for repository in repositories(profile):
        if repository.name not in part.git:
            message = f"{repository.ref} of {without_login(repository.url)} is not in the lock"
            outdated.append(Stale(repository.name, message, f"sources.{repository.source}"))
    is_locked = platform in part.python if platform else bool(part.python)
    if part.base is not None and not is_locked:
        where = f" for {platform}" if platform else ""
        message = f"the Python packages{where} are not locked, or out of date"
        outdated.append(Stale("pip", message, "pip"))
    return outdated


def unlocked_models(profile: Profile, lock: Lock) -> list[Stale]:
    """The models of services that the lock lacks. No image depends on them."""
    lacking = []
    for name, models in models_of(profile).items():
        for model in models:
            if model_key(model.repo, model.revision) not in lock.models:
                message = f"{model.revision} of the model {model.repo} is not in the lock"
                lacking.append(Stale(name, message, f"services.{name}.model"))
    return lacking


_VARIED = re.compile(
    r"services\.([^.]+)\."
    r'(?:model\.repo|args\.(?:spec-model|speculative-config\.model|"speculative-config\.model"))'
)


def models_of(profile: Profile) -> dict[str, tuple[ModelRef, ...]]:
    """The weights that the services of a profile load, by service: models and drafts, those of all
    variants too.
    """
    weights = {
        name: list(service.models) for name, service in profile.services.items() if service.models
    }
    for variant in profile.variants.values():
        for path, value in variant.changes.items():
            match = _VARIED.fullmatch(path)
            draft = (
                draft_of(value, variant.changes.get(f"{path.rpartition('.')[0]}.revision"))
                if match
                else None
            )
            if match and draft is not None and draft not in weights.setdefault(match[1], []):
                weights[match[1]].append(draft)
    return {name: tuple(models) for name, models in weights.items()}


FAMILY = "flashinfer"  # its packages are of one release, or they refuse each other


@dataclass(frozen=True)
class Upgrade:
    """``names``: the inputs that the user named; ``everything``: none in particular."""

    names: tuple[str, ...] = ()
    everything: bool = False

    def wants(self, *names: str) -> bool:
        """True when one of these inputs is to be upgraded."""
        return self.everything or any(name in self.names for name in names)

    def moves(self, package: str) -> bool:
        """True when this Python package is to be upgraded."""
        named = {canonicalize_name(name) for name in self.names}
        related = package.startswith(FAMILY) and any(
            name.startswith(f"{FAMILY}-") for name in named
        )
        return self.everything or package in named or related

    def wants_python(self, profile: Profile, lock: Lock) -> bool:
        """True when a Python package of this profile is to be upgraded."""
        have = lock.python.get(profile.name, {}).values()
        pins = {pin.name for python in have for pins in python.sets.values() for pin in pins}
        wheels = [name for name, source in profile.sources.items() if source.origin.wheel]
        return self.wants("pip", *wheels) or any(map(self.moves, pins))


def keep(
    have: Mapping[str, PythonLock], upgrade: Upgrade, profile: Profile
) -> dict[str, dict[str, str]]:
    """set -> package -> version: what keeps its version, unless another package forces a change."""
    kept: dict[str, dict[str, str]] = {}
    if upgrade.wants("pip"):
        return kept
    for python in have.values():
        for step, pins in python.sets.items():
            _, _, name = step.partition(".")
            source = profile.sources.get(name)
            if name in upgrade.names and source and not source.origin.git:
                continue
            for pin in pins:
                if not upgrade.moves(pin.name):
                    versions = kept.setdefault(step, {})
                    versions[pin.name] = pin.version
    return kept


def checked(names: Sequence[str], profiles: Sequence[Profile], lock: Lock) -> tuple[str, ...]:
    """Validate the names of inputs. UsageError with a similar name."""
    known = {"base", "pip"}
    for profile in profiles:
        known |= {
            str(profile.base.image),
            *profile.sources,
            *models_of(profile),
            *(one.name for one in repositories(profile)),
        }
        for python in lock.python.get(profile.name, {}).values():
            known |= {pin.name for pins in python.sets.values() for pin in pins}
    for name in names:
        if name not in known and canonicalize_name(name) not in known:
            raise UsageError(f"unknown input {name!r}", hint=suggestion(name, sorted(known)))
    return tuple(names)
