"""All decisions of a render: from a profile (and a lock) to frozen values that templates only print.

Pure: no clock, no environment, no working directory, no host. What a render needs from disk (patch series) comes in as data.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgen.profile.model import Encoding, HostPath, Mode, Profile, Source

if TYPE_CHECKING:
    from envgen.patches.series import Patch, Series

Lock = Any  # room for envgen.lock

HOME = "/opt/envgen"  # everything of ours in an image
OVERLAY = f"{HOME}/env"  # the virtual environment of mounted sources, on a volume
ENTRYPOINT = f"{HOME}/bin/entrypoint"
RUN = "/run/envgen"  # where build steps mount what they use
CA_FILE = "/etc/envgen/ca.crt"  # where a company's CA certificates are mounted at run time
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
JOBS_WITHOUT_ENVGEN = 1  # what MAX_JOBS is when nobody computed it: slow, and never out of memory

# Caches whose program must be told where they are, wherever the profile puts them.
CACHE_VARIABLES = {
    "ccache": "CCACHE_DIR",
    "huggingface": "HF_HOME",
    "triton": "TRITON_CACHE_DIR",
    "uv": "UV_CACHE_DIR",
    "vllm": "VLLM_CACHE_ROOT",
}


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
class BuiltSource:
    """A source that is fetched, patched and built. Fields that hold at most one item say whether the step is there."""

    name: str
    label: str
    folder: str
    fetch_git: tuple[tuple[str, ...], ...]
    fetch_sdist: tuple[tuple[str, ...], ...]
    patch_source: tuple[PatchStep, ...]
    requires: tuple[tuple[str, ...], ...]
    env: tuple[tuple[Pair, ...], ...]
    build_words: tuple[str, ...]


@dataclass(frozen=True)
class InstallStep:
    """One source into the finished image: the wheel of its own stage, or a pinned wheel of the package index."""

    wheel_of: tuple[str, ...]
    words: tuple[str, ...]


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
    protect_words: tuple[str, ...]
    apt_build: tuple[tuple[str, ...], ...]
    apt_runtime: tuple[tuple[str, ...], ...]
    deps: tuple[tuple[str, ...], ...]
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

    @property
    def context_files(self) -> tuple[str, ...]:
        """The files of the project that the build reads, relative to it."""
        patches = [patch.path for source in self.built for step in source.patch_source for patch in step.patches]
        patches += [patch.path for step in self.patch_installed for patch in step.patches]
        local = [file for stage in self.encodings for encoding in stage.files for file in encoding.files]
        return tuple(sorted({*patches, *local}))


def plan(profile: Profile, lock: Lock | None = None, patches: Mapping[str, Series] | None = None) -> Plan:
    """Decide everything about the image of ``profile``. ``patches``: the series of each source that has one."""
    del lock  # nothing is locked yet
    series = patches or {}
    built = tuple(
        _built(name, source, series.get(name))
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
        base_image=str(profile.base.image),
        python=profile.base.python,
        protect_words=("record", *profile.pip.protect, "--off", *profile.pip.override),
        apt_build=_once(_apt_build(profile, patched=bool(patches))),
        apt_runtime=_once(profile.apt.runtime),
        deps=_once((*profile.pip.tools, *profile.pip.deps)),
        built=built,
        installs=_installs(profile),
        mounted=tuple(_mounted(name, source) for name, source in profile.mounted_sources.items()),
        build_env=tuple(_cuda_env(profile)),
        ccache=(f"{RUN}/cache/ccache",) if profile.build.ccache else (),
        encodings=_encodings(profile),
        patch_installed=_patch_installed(profile, series),
        folders=(profile.working_dir.path,),
        working_dir=profile.working_dir.path,
        image_env=tuple(_image_env(profile)),
        labels=_labels(profile),
        entrypoint=(ENTRYPOINT,),
        command=("bash",),
    )


def _once(words: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """One step with these words, or no step."""
    listed = tuple(words)
    return (listed,) if listed else ()


def _apt_build(profile: Profile, patched: bool) -> list[str]:
    """The profile's packages and those that the rendered steps themselves need."""
    needed = ["ca-certificates"]
    kinds = {source.origin.kind for source in profile.sources.values()}
    if patched or kinds & {"git", "checkout"}:  # git reads the refs of a mount and applies patches
        needed.append("git")
    if profile.build.ccache and kinds - {"wheel"}:
        needed.append("ccache")
    named = {package.split("=", 1)[0] for package in profile.apt.build}
    return [*(package for package in needed if package not in named), *profile.apt.build]


def _built(name: str, source: Source, series: Series | None) -> BuiltSource:
    origin, install = source.origin, source.install
    folder = f"/src/{name}"
    git: tuple[str, ...] = ()
    sdist: tuple[str, ...] = ()
    if origin.pypi is not None:
        sdist = (origin.pypi.name, origin.pypi.version, folder)
        label = f"{name}: {origin.pypi} of the package index"
    else:
        git = (origin.git or "", origin.git_ref, folder, "submodules" if source.submodules else "plain")
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
        requires=_once(install.requires),
        env=(tuple(Pair(key, value) for key, value in install.env.items()),) if install.env else (),
        build_words=(folder, "/wheels", *install.prepare),
    )


def _installs(profile: Profile) -> tuple[InstallStep, ...]:
    steps = []
    for name, source in profile.sources.items():
        flags = () if source.install.dependencies else ("--no-deps",)
        if source.origin.wheel is not None:
            steps.append(InstallStep((), (*flags, str(source.origin.wheel))))
        elif source.origin.kind != "checkout":
            steps.append(InstallStep((name,), flags))
    return tuple(steps)


def _patch_installed(profile: Profile, series: Mapping[str, Series]) -> tuple[PatchStep, ...]:
    """One step for all Python-only patches, so that an edit of one costs one step."""
    patches: list[Patch] = []
    commands = []
    for name, found in series.items():
        source = profile.sources[name]
        early, late = found.split(source.package)
        if early and source.origin.wheel is not None:
            raise ValueError(f"sources.{name}: {early[0].path} touches more than Python files, and a wheel is not built")
        if late:
            patches += late
            commands.append((source.package, *(f"{RUN}/{patch.path}" for patch in late)))
    return (PatchStep(tuple(patches), tuple(commands)),) if patches else ()


def _mounted(name: str, source: Source) -> MountedSource:
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


def _cuda_env(profile: Profile) -> list[Pair]:
    cuda, build = profile.cuda, profile.build
    return [
        Pair("CUDA_HOME", cuda.home.path),
        Pair("FLASHINFER_CUDA_ARCH_LIST", cuda.arch_list.flashinfer),
        Pair("TORCH_CUDA_ARCH_LIST", cuda.arch_list.torch),
        Pair("FLASHINFER_NVCC_THREADS", str(build.nvcc_threads)),
        Pair("NVCC_THREADS", str(build.nvcc_threads)),
    ]


def _image_env(profile: Profile) -> list[Pair]:
    """What is true of the image whoever starts it. What only services want stands in their Compose file alone."""
    pairs = _cuda_env(profile)
    # The base image's bundle, to which the entry point adds a company's CA: `docker exec` sees it too.
    pairs += [Pair("SSL_CERT_FILE", CA_BUNDLE), Pair("REQUESTS_CA_BUNDLE", CA_BUNDLE)]
    if profile.tiktoken.encodings:
        pairs.append(Pair("TIKTOKEN_ENCODINGS_BASE", profile.tiktoken.directory.path))
    if profile.python_path:
        pairs.append(Pair("PYTHONPATH", ":".join(path.path for path in profile.python_path), prepend=True))
    return pairs


def service_env(profile: Profile) -> dict[str, str]:
    """The variables that follow from the profile but concern running containers only (MAX_JOBS aside)."""
    env = {CACHE_VARIABLES[name]: cache.path.path for name, cache in profile.caches.items() if name in CACHE_VARIABLES}
    flashinfer = profile.caches.get("flashinfer")
    if flashinfer and flashinfer.path.path.endswith("/.cache/flashinfer"):
        env["FLASHINFER_WORKSPACE_BASE"] = flashinfer.path.path.removesuffix("/.cache/flashinfer") or "/"
    if profile.caches:
        env["ENVGEN_CACHE_DIRS"] = ":".join(cache.path.path for cache in profile.caches.values())
    return env


def derived_env(profile: Profile) -> dict[str, str]:
    """Every variable that envgen itself derives from the profile: those of the image and those of its services.

    PYTHONPATH is followed by what the base image has. Groups of ``env`` and a service's own ``env`` are stronger.
    """
    return {**{pair.name: pair.value for pair in _image_env(profile)}, **service_env(profile)}


def _labels(profile: Profile) -> tuple[Pair, ...]:
    """Identity, without the render digest, which is a digest of everything else."""
    pairs = [
        Pair("dev.envgen.project", profile.project),
        Pair("dev.envgen.profile", profile.name),
        Pair("dev.envgen.lock", ""),
        Pair("org.opencontainers.image.title", f"{profile.project} {profile.name}"),
        Pair("org.opencontainers.image.base.name", str(profile.base.image)),
    ]
    if profile.description:
        pairs.append(Pair("org.opencontainers.image.description", profile.description))
    return tuple(pairs)


# --- names that the rendered Compose files and the commands share -----------------------------------------------------


def checkout_variable(source: str) -> str:
    return f"ENVGEN_SOURCES__{source.upper()}__ORIGIN__CHECKOUT"


def cache_variable(cache: str) -> str:
    return f"ENVGEN_CACHES__{cache.upper()}__HOST"


JOBS_VARIABLE = "ENVGEN_BUILD__MAX_JOBS"
CA_VARIABLE = "ENVGEN_NETWORK__CA_CERTIFICATES"
WHEELHOUSE_VARIABLE = "ENVGEN_BUILD__WHEELHOUSE"


def cache_volume(profile: Profile, cache: str) -> str:
    """The Docker volume of a cache that has no folder on the host."""
    return f"{profile.compose_name}-cache-{cache}"


def overlay_volume(profile: Profile) -> str:
    """The Docker volume of editable installs: another base image, Python or set of sources starts a new one."""
    parts = [str(profile.base.image), profile.base.python]
    parts += sorted(f"{name}={source.distribution}" for name, source in profile.mounted_sources.items())
    return f"{profile.compose_name}-env-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def compose_path(path: HostPath) -> str | None:
    """A path of the project as the Compose files in compose/ write it. None: it names one machine, so it is not written."""
    if path.is_machine_specific:
        return None
    if path.path == "~" or path.path.startswith("~/"):
        return path.path
    return posixpath.normpath(posixpath.join("..", path.path))


def compose_environment(profile: Profile, root: Path, max_jobs: int) -> dict[str, str]:
    """What `envgen up` sets for the rendered Compose file: this machine's absolute paths and number of jobs."""

    def absolute(path: HostPath) -> str:
        return str((root / Path(path.path).expanduser()).resolve())

    env = {JOBS_VARIABLE: str(max_jobs)}
    for name, source in profile.mounted_sources.items():
        if source.origin.checkout is not None:
            env[checkout_variable(name)] = absolute(source.origin.checkout)
    for name, cache in profile.caches.items():
        if cache.host is not None:
            env[cache_variable(name)] = absolute(cache.host)
    if profile.network.ca_certificates is not None:
        env[CA_VARIABLE] = absolute(profile.network.ca_certificates)
    if profile.build.wheelhouse is not None:
        env[WHEELHOUSE_VARIABLE] = absolute(profile.build.wheelhouse)
    return env
