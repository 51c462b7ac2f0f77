"""All decisions of a render: from a profile (and a lock) to frozen values that templates only print.

Pure: no clock, no environment, no working directory, no host. What a render needs from disk (patches) comes in as data.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from envgen.lock.ask import apt_build
from envgen.lock.model import LOCAL, ProfileLock
from envgen.profile.model import Encoding, Mode, Profile, Source
from envgen.render import locking
from envgen.render.environment import (
    ENTRYPOINT,
    RUN,
    checkout_variable,
    compose_environment,
    compose_path,
    cuda_env,
    derived_env,
    image_env,
)
from envgen.render.parts import (
    BuiltSource,
    EncodingFile,
    EncodingStage,
    InstallStep,
    MountedSource,
    Pair,
    PatchStep,
    PipStep,
    Plan,
)

if TYPE_CHECKING:
    from envgen.patches.series import Patch, Series

__all__ = ["Lock", "Plan", "compose_environment", "derived_env", "plan"]

Lock = ProfileLock  # what envgen.lock says about the profile


def plan(profile: Profile, lock: Lock | None = None, patches: Mapping[str, Series] | None = None) -> Plan:
    """Decide everything about the image of ``profile``. ``patches``: the series of each source that has one."""
    series = patches or {}
    lists = locking.requirements(profile, lock)
    built = tuple(
        _built(name, source, series.get(name), lock, lists)
        for name, source in profile.sources.items()
        if source.origin.kind in ("git", "pypi")
    )
    return Plan(
        profile=profile.name,
        project=profile.project,
        description=profile.description or f"The environment {profile.name}.",
        development=profile.mode is Mode.DEVELOPMENT,
        dockerfile=profile.dockerfile,
        image=profile.image_name,
        platform=profile.base.platform.value if profile.base.platform else "",
        base_image=locking.base_image(profile.base.image, lock),
        python=profile.base.python,
        first_python="base" if profile.base.apt else "origin",
        protect_words=("record", *profile.pip.protect, "--off", *profile.pip.override),
        apt_build=_once(locking.apt_words(lock, "build", apt_build(profile))),
        apt_runtime=_once(locking.apt_words(lock, "runtime", profile.apt.runtime)),
        deps=_deps(profile, lists),
        built=built,
        installs=_installs(profile, lists),
        mounted=tuple(_mounted(profile, name) for name in profile.mounted_sources),
        build_env=tuple(cuda_env(profile)),
        ccache=(f"{RUN}/cache/ccache",) if profile.build.ccache else (),
        encodings=_encodings(profile),
        patch_installed=_patch_installed(profile, series),
        folders=(profile.working_dir.path,),
        working_dir=profile.working_dir.path,
        image_env=tuple(image_env(profile)),
        labels=_labels(profile, series, lock),
        entrypoint=(ENTRYPOINT,),
        command=("bash",),
        requirements={step: text for step, text in lists.items() if text},
        uv_locked=_list("uv", lists),
        epoch=locking.epoch(lock),
        manifest=locking.manifest(profile, lock),
    )


def _once(words: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """One step with these words, or no step."""
    listed = tuple(words)
    return (listed,) if listed else ()


def _list(step: str, lists: Mapping[str, str]) -> tuple[str, ...]:
    """The file of a step's packages, if the lock has one that names any."""
    return (f"{step}.txt",) if lists.get(step) else ()


def _pip(step: str, words: tuple[str, ...], options: tuple[str, ...], lists: Mapping[str, str]) -> tuple[PipStep, ...]:
    """One step that installs ``words``, or exactly what the lock lists for them."""
    if not words or lists.get(step) == "":
        return ()
    file = _list(step, lists)
    return (PipStep((*options, "--", *(locking.HASHED if file else words)), file),)


def _built(
    name: str, source: Source, series: Series | None, lock: Lock | None, lists: Mapping[str, str]
) -> BuiltSource:
    origin, install = source.origin, source.install
    folder = f"/src/{name}"
    git: tuple[str, ...] = ()
    sdist: tuple[str, ...] = ()
    if origin.pypi is not None:
        sdist = (origin.pypi.name, origin.pypi.version, folder, *locking.sdist_hash(name, lock))
        label = f"{name}: {origin.pypi} of the package index"
    else:
        wanted, full_name = locking.git_words(lock.git.get(name) if lock else None, origin.git_ref)
        mode = "submodules" if source.submodules else "plain"
        git = (origin.git or "", wanted, folder, mode, *((full_name,) if full_name else ()))
        label = f"{name}: {origin.git_ref} of {origin.git}"
    early = series.split(source.package)[0] if series else ()
    steps = (PatchStep(early, ((folder, *(f"{RUN}/{patch.path}" for patch in early)),)),) if early else ()
    return BuiltSource(
        name=name,
        label=label,
        folder=folder,
        fetch_git=_once(git),
        fetch_sdist=_once(sdist),
        patch_source=steps,
        requires=_pip(f"requires.{name}", install.requires, (), lists),
        env=(tuple(Pair(key, value) for key, value in install.env.items()),) if install.env else (),
        build_words=(folder, "/wheels", *install.prepare),
    )


def _install_options(profile: Profile, own: str = "") -> tuple[str, ...]:
    """What pip-install must know: what is meant to be installed, and that no other source is taken from the index."""
    options = ["--own", profile.sources[own].distribution] if own else []
    for name, source in profile.sources.items():
        if name != own:
            options += ["--never", source.distribution]
    return tuple(options)


def _deps(profile: Profile, lists: Mapping[str, str]) -> tuple[PipStep, ...]:
    return _pip("deps", (*profile.pip.tools, *profile.pip.deps), _install_options(profile), lists)


def _installs(profile: Profile, lists: Mapping[str, str]) -> tuple[InstallStep, ...]:
    steps = []
    for name, source in profile.sources.items():
        options = _install_options(profile, name)
        flags = (*options, "--", *(() if source.install.dependencies else ("--no-deps",)))
        step = f"install.{name}"
        file = _list(step, lists)
        if source.origin.wheel is not None:
            words = (*options, "--", *locking.HASHED) if file else (*flags, str(source.origin.wheel))
            steps.append(InstallStep((), words, file))
        elif source.origin.kind != "checkout":
            if step not in lists:
                steps.append(InstallStep((name,), flags))
                continue
            # Its dependencies first, each with its hash; then what was built here, which must want nothing else.
            before = ((*_install_options(profile), "--", *locking.HASHED),) if file else ()
            steps.append(InstallStep((name,), ("--complete", *options, "--", "--no-deps"), file, before))
    return tuple(steps)


def _patch_installed(profile: Profile, series: Mapping[str, Series]) -> tuple[PatchStep, ...]:
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
    return (PatchStep(tuple(patches), tuple(commands)),) if patches else ()


def _mounted(profile: Profile, name: str) -> MountedSource:
    source = profile.sources[name]
    install = source.install
    assert source.origin.checkout is not None
    return MountedSource(
        name=name,
        mount=source.mount.path,
        variable=checkout_variable(name),
        default=compose_path(source.origin.checkout),
        manifest={
            "name": name,
            "package": source.package,
            "distribution": source.distribution,
            "mount": source.mount.path,
            "requires": list(install.requires),
            "env": dict(install.env),
            "prepare": list(install.prepare),
            "dependencies": install.dependencies,
            "install_options": list(_install_options(profile, name)),
        },
    )


def _encodings(profile: Profile) -> tuple[EncodingStage, ...]:
    files = tuple(_encoding(name, encoding) for name, encoding in profile.tiktoken.encodings.items())
    return (EncodingStage(profile.tiktoken.directory.path, files),) if files else ()


def _encoding(name: str, encoding: Encoding) -> EncodingFile:
    local: tuple[str, ...] = ()
    if encoding.file is not None:
        path = posixpath.normpath(encoding.file.path)
        if path.startswith(("/", "~", "..")):
            raise ValueError(f"{path!r} lies outside the project folder, so no build can read it")
        local = (path,)
    places = (*(f"{RUN}/{path}" for path in local), encoding.url, *encoding.mirrors)
    return EncodingFile(local, (f"/encodings/{name}.tiktoken", encoding.sha256, *places))


def _labels(profile: Profile, series: Mapping[str, Series], lock: Lock | None) -> tuple[Pair, ...]:
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
