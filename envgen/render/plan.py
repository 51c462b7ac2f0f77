"""All decisions of a render: from a profile (and a lock) to frozen values that templates only print.

Pure: no clock, no environment, no working directory, no host. What a render needs from disk (patches) comes in as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envgen.lock.ask import apt_build
from envgen.lock.model import LOCAL, ProfileLock
from envgen.patches.series import Patch, Series
from envgen.profile.model import Encoding, Pip, Profile, Source
from envgen.profile.values import own_path
from envgen.render import locking
from envgen.render.environment import (
    RUN,
    WRITTEN,
    build_env,
    image_env,
    opened_folders,
)
from envgen.render.quote import Pair


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


def plan(profile: Profile, lock: ProfileLock | None = None, patches: Mapping[str, Series] | None = None) -> Plan:
    """Decide everything about the image of ``profile``. ``patches``: the series of each source that has one."""
    series = patches or {}
    lists = locking.requirements(profile, lock)
    built = tuple(
        _built(profile, name, source, series.get(name), lock, lists)
        for name, source in profile.sources.items()
        if source.origin.is_built
    )
    return Plan(
        profile=profile,
        base_image=locking.base_image(profile.base.image, lock),
        first_python="base" if profile.base.apt else "origin",
        protect_words=_protect(profile.pip),
        apt_build=_apt("build", apt_build(profile), lock),
        apt_runtime=_apt("runtime", profile.apt.runtime, lock),
        deps=_deps(profile, lists),
        built=built,
        installs=_installs(profile, lists),
        build_env=tuple(build_env(profile)),
        ccache=f"{RUN}/cache/ccache" if profile.build.ccache else "",
        encodings=tuple(_encoding(name, encoding) for name, encoding in profile.tiktoken.encodings.items()),
        patch_installed=_patch_installed(profile, series),
        opened=opened_folders(profile),
        image_env=tuple(image_env(profile)),
        labels=_labels(profile, series, lock),
        uv_locked=_list(profile, "uv", lists),
        epoch=str(lock.epoch) if lock else "",
        reproducible=bool(lock) and profile.reproducible,
        data=_data(profile, lock, lists),
    )


def _protect(pip: Pip) -> tuple[str, ...]:
    """The words of protect: what stays, what is never installed, what of the base image goes."""
    return ("record", *pip.protect, "--off", *pip.override, *(("--remove", *pip.remove) if pip.remove else ()))


def _apt(step: str, packages: tuple[str, ...], lock: ProfileLock | None) -> Step | None:
    """One step with these Debian packages, or no step."""
    words = locking.apt_words(lock, step, packages)
    return Step(_listed(packages), words) if words else None


def _listed(names: Iterable[str]) -> str:
    """Names for a comment: without their ranges of versions, which the command has."""
    return ", ".join(re.split(r"[\s<>=!~;\[]", name, maxsplit=1)[0] for name in names) + "."


def _list(profile: Profile, step: str, lists: Mapping[str, str]) -> str:
    """The file of a step's packages in the stage `scripts`, if the lock has one that names any."""
    return f"/profiles/{profile.name}/locked/{step}.txt" if lists.get(step) else ""


def _data(profile: Profile, lock: ProfileLock | None, lists: Mapping[str, str]) -> dict[str, str]:
    """The files of this profile alone, by their path in the stage `scripts`."""
    head = f"# {WRITTEN} from envgen.lock.\n"
    found = {_list(profile, step, lists): head + text for step, text in lists.items() if text}
    runtime = f"/profiles/{profile.name}/runtime"
    if manifest := locking.manifest(profile, lock):
        found[f"{runtime}/manifest.json"] = manifest
    if profile.mounted_sources:
        sources = [_mounted(profile, name) for name in profile.mounted_sources]
        found[f"{runtime}/sources.json"] = json.dumps({"#": WRITTEN, "sources": sources}, indent=1) + "\n"
    return found


def _pip(
    profile: Profile, step: str, words: tuple[str, ...], options: tuple[str, ...], lists: Mapping[str, str]
) -> Step | None:
    """One step that installs ``words``, or exactly what the lock lists for them."""
    if not words or lists.get(step) == "":
        return None
    file = _list(profile, step, lists)
    return Step(_listed(words), (*options, "--", *(locking.HASHED if file else words)), file)


def _built(
    profile: Profile,
    name: str,
    source: Source,
    series: Series | None,
    lock: ProfileLock | None,
    lists: Mapping[str, str],
) -> BuiltSource:
    origin, install = source.origin, source.install
    folder, inputs = f"/src/{name}", f"/src/inputs/{name}"
    git: list[tuple[str, ...]] = []
    sdist: tuple[str, ...] = ()
    copy = own_path(origin.folder.path) if origin.folder is not None else ""
    if copy:
        label = f"{name}: the folder {copy} of the project."
    elif origin.pypi is not None:
        sdist = (origin.pypi.name, origin.pypi.version, folder, *locking.sdist_hash(name, lock))
        label = f"{name}: {origin.pypi} of the package index."
    else:
        without = [word for path in source.submodule_origins for word in ("--without", path)]
        mode = "submodules" if source.submodules else "plain"
        git.append((*without, *_fetch(name, origin.git or "", origin.git_ref, folder, lock, mode)))
        for path, fork in source.submodule_origins.items():
            git.append(_fetch(f"{name}/{path}", fork.git, fork.ref, f"{folder}/{path}", lock))
        label = f"{name}: {origin.git_ref} of {origin.git}."
    env = [Pair(key, value) for key, value in install.env.items()]
    for key, one in install.inputs.items():
        git.append(_fetch(f"{name}.{key}", one.git, one.ref, f"{inputs}/{key}", lock))
        env.append(Pair(one.variable, f"{inputs}/{key}{'/' + one.folder if one.folder else ''}"))
    early = series.split(source.package)[0] if series else ()
    step = PatchStep(early, ((folder, *(f"{RUN}/{patch.path}" for patch in early)),)) if early else None
    return BuiltSource(
        name=name,
        label=label,
        folder=folder,
        fetch_git=tuple(git),
        fetch_sdist=sdist,
        patch_source=step,
        requires=_pip(profile, f"requires.{name}", install.requires, (), lists),
        inputs=inputs if install.inputs else "",
        env=tuple(env),
        build_words=(folder, "/wheels", *install.prepare),
        copy=copy,
    )


def _fetch(
    key: str, url: str, ref: str, folder: str, lock: ProfileLock | None, mode: str = "submodules"
) -> tuple[str, ...]:
    """The words of fetch-git for a repository; ``key`` is its name in the lock."""
    wanted, full_name = locking.git_words(lock.git.get(key) if lock else None, ref)
    return (url, wanted, folder, mode, *((full_name,) if full_name else ()))


def _install_options(profile: Profile, own: str = "") -> tuple[str, ...]:
    """What pip-install must know: what is meant to be installed, and that no other source is taken from the index."""
    options = ["--own", profile.sources[own].distribution] if own else []
    for name, source in profile.sources.items():
        if name != own:
            options += ["--never", source.distribution]
    return tuple(options)


def _deps(profile: Profile, lists: Mapping[str, str]) -> Step | None:
    return _pip(profile, "deps", (*profile.pip.tools, *profile.pip.deps), _install_options(profile), lists)


def _installs(profile: Profile, lists: Mapping[str, str]) -> tuple[InstallStep, ...]:
    steps = []
    for name, source in profile.sources.items():
        options = _install_options(profile, name)
        flags = (*options, "--", *(() if source.install.dependencies else ("--no-deps",)))
        step = f"install.{name}"
        file = _list(profile, step, lists)
        if source.origin.wheel is not None:
            words = (*options, "--", *locking.HASHED) if file else (*flags, str(source.origin.wheel))
            steps.append(InstallStep(f"{name}: {source.origin.wheel}.", "", words, file))
        elif source.origin.kind != "checkout":
            title = f"{name}: the wheel that was built above."
            if step not in lists:
                steps.append(InstallStep(title, name, flags))
                continue
            # Its dependencies first, each with its hash; then what was built here, which must want nothing else.
            before = (*_install_options(profile), "--", *locking.HASHED) if file else ()
            steps.append(InstallStep(title, name, ("--complete", *options, "--", "--no-deps"), file, before))
    return tuple(steps)


def _patch_installed(profile: Profile, series: Mapping[str, Series]) -> PatchStep | None:
    """One step for all Python-only patches, so that an edit of one costs one step."""
    patches: list[Patch] = []
    commands = []
    for name, found in series.items():
        source = profile.sources[name]
        early, late = found.split(source.package)
        if early and source.origin.wheel is not None:
            raise ValueError(f"sources.{name}: {early[0].path} is not Python alone, and a wheel is not built")
        if late:
            patches += late
            commands.append((source.package, *(f"{RUN}/{patch.path}" for patch in late)))
    return PatchStep(tuple(patches), tuple(commands)) if patches else None


def _mounted(profile: Profile, name: str) -> dict[str, object]:
    """What envgen-install in the container reads of a source whose checkout is mounted."""
    source = profile.sources[name]
    install = source.install
    return {
        "name": name,
        "package": source.package,
        "distribution": source.distribution,
        "mount": source.mount.path,
        "requires": list(install.requires),
        "env": dict(install.env),
        "prepare": list(install.prepare),
        "dependencies": install.dependencies,
        "install_options": list(_install_options(profile, name)),
    }


def _encoding(name: str, encoding: Encoding) -> EncodingFile:
    local = own_path(encoding.file.path) if encoding.file is not None else ""
    places = (*((f"{RUN}/{local}",) if local else ()), encoding.url, *encoding.mirrors)
    return EncodingFile(local, (f"/encodings/{name}.tiktoken", encoding.sha256, *places))


def _labels(profile: Profile, series: Mapping[str, Series], lock: ProfileLock | None) -> tuple[Pair, ...]:
    """Identity, without the render digest, which is a digest of everything else."""
    pairs = [
        Pair("dev.envgen.project", profile.project),
        Pair("dev.envgen.profile", profile.name),
        Pair("dev.envgen.lock", lock.digest if lock else ""),
        Pair("org.opencontainers.image.title", f"{profile.project} {profile.name}"),
        Pair("org.opencontainers.image.base.name", str(profile.base.image)),
    ]
    if lock and lock.base and lock.base.resolved != LOCAL:
        pairs.append(Pair("org.opencontainers.image.base.digest", lock.base.digest))
    names = [f"{found.folder}/{patch.name}" for found in series.values() for patch in found.patches]
    if names:  # the manifest: which patches are in, in order
        pairs.append(Pair("dev.envgen.patches", " ".join(name.removeprefix("patches/") for name in names)))
    if profile.description:
        pairs.append(Pair("org.opencontainers.image.description", profile.description))
    return tuple(pairs)
