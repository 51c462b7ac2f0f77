"""All decisions of a render: a profile (and a lock) becomes values that templates only print.

Pure: no clock, no environment, no working directory, no host. Patches, which are on disk, come in as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envgen.lock.ask import apt_build
from envgen.lock.model import LOCAL, ProfileLock
from envgen.patches.series import Patch, Series
from envgen.profile.model import Encoding, Profile, Source
from envgen.profile.values import own_path
from envgen.render import environment, locking
from envgen.render.environment import RUN, WRITTEN
from envgen.render.quote import Pair


@dataclass(frozen=True)
class PatchStep:
    """Patches for one step, and the arguments of the commands that apply them."""

    patches: tuple[Patch, ...]
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Step:
    """One command: its title in the Dockerfile, and its arguments.

    ``locked``: its list of packages with hashes (a path in the stage `scripts`), if it has one; ``wheel_of``: the
    source whose wheel it installs; ``before``: the arguments of a command before it, in the same step.
    """

    title: str
    words: tuple[str, ...]
    locked: str = ""
    wheel_of: str = ""
    before: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        return (self.before, self.words) if self.before else (self.words,)


@dataclass(frozen=True)
class BuiltSource:
    """A source that is fetched (by git or as a source distribution) or copied, patched and built.

    ``inputs``: the folder of the repositories that its build would fetch itself; "" without any.
    """

    name: str
    label: str
    folder: str
    copy: str  # the folder of the project to copy
    fetch_git: tuple[tuple[str, ...], ...]
    fetch_sdist: tuple[str, ...]
    patch_source: PatchStep | None
    requires: Step | None
    inputs: str
    env: tuple[Pair, ...]
    build_words: tuple[str, ...]


# Variables for the build of a mounted package with `binaries`. vLLM's takes compiled modules from the file {wheel}.
# FlashInfer's (0.7) would install a newer NCCL than torch's and a second nvcc during its own installation, and wait
# forever for the environment, which that installation has locked.
PRECOMPILED = {
    "vllm": {"VLLM_USE_PRECOMPILED": "1", "VLLM_PRECOMPILED_WHEEL_LOCATION": "{wheel}"},
    "flashinfer": {"BUILD_NVEP": "0", "FLASHINFER_BUILD_NO_PIP": "1"},
}


class Plan:
    """Everything about the image of a profile. ``patches``: source -> its series."""

    def __init__(
        self, profile: Profile, lock: ProfileLock | None = None, patches: Mapping[str, Series] | None = None
    ) -> None:
        self.profile = profile
        self.lock = lock
        self.patches = patches or {}
        # The lock's list for each step; "": nothing to install.
        self._lists = locking.requirements(profile, lock)
        self.base_image = locking.base_image(profile.base.image, lock)
        # The first stage with the interpreter.
        self.first_python = "base" if profile.base.apt else "origin"
        self.epoch = str(lock.epoch) if lock else ""  # the time of all new files
        pip, python = profile.pip, profile.base.python
        self.pip_install = (python, f"{RUN}/lib/with-index", python, f"{RUN}/lib/pip-install")
        removed = ("--remove", *pip.remove) if pip.remove else ()
        self.protect_words = ("record", *pip.protect, "--off", *pip.override, *removed)
        self.apt_build = self._apt("build", apt_build(profile))
        self.apt_runtime = self._apt("runtime", profile.apt.runtime)
        self.uv_locked = self._list("uv")
        self.built = tuple(self._built(name, one) for name, one in profile.sources.items() if one.origin.is_built)
        deps = self._pip("deps", (*pip.tools, *pip.deps), self._install_options())
        self.installs = (*((deps,) if deps else ()), *self._installs())
        self.patch_installed = self._patch_installed()
        self.ccache = f"{RUN}/cache/ccache" if profile.build.ccache else ""
        # What compilers read: a stage of its own where wheels are built, which the finished image starts from too.
        self.cuda_env = environment.cuda_env(profile) if self.built else []
        self.compiler = "cuda" if self.cuda_env else "base"
        self.image_env = [pair for pair in environment.image_env(profile) if pair not in self.cuda_env]
        self.opened = environment.opened_folders(profile)  # writable by every user
        self.encodings = tuple(_encoding(name, encoding) for name, encoding in profile.tiktoken.encodings.items())
        # The files of the project that the build reads.
        steps = [self.patch_installed, *(source.patch_source for source in self.built)]
        read = {patch.path for step in steps if step for patch in step.patches}
        self.context_files = tuple(sorted(read))

    def _apt(self, step: str, packages: tuple[str, ...]) -> Step | None:
        words = locking.apt_words(self.lock, step, packages)
        return Step(_listed(packages), words) if words else None

    def _list(self, step: str) -> str:
        """The file of a step's locked packages in the stage `scripts`; "" without any."""
        return f"/profiles/{self.profile.name}/locked/{step}.txt" if self._lists.get(step) else ""

    def _pip(self, step: str, words: tuple[str, ...], options: tuple[str, ...]) -> Step | None:
        """One step that installs ``words``, or exactly the packages that the lock lists for them."""
        if not words or self._lists.get(step) == "":
            return None
        file = self._list(step)
        return Step(_listed(words), (*options, "--", *(locking.HASHED if file else words)), file)

    def _install_options(self, own: str = "") -> tuple[str, ...]:
        """Options of pip-install: the distribution to install, and the sources that must not come from the index."""
        options = ["--own", self.profile.sources[own].distribution] if own else []
        for name, source in self.profile.sources.items():
            options += ["--never", source.distribution] if name != own else []
        return tuple(options)

    def _installs(self) -> Iterator[Step]:
        """The steps that install each source: the wheel of its own stage, or a pinned wheel of the package index."""
        for name, source in self.profile.sources.items():
            options = self._install_options(name)
            flags = (*options, "--", *(() if source.install.dependencies else ("--no-deps",)))
            file = self._list(f"install.{name}")
            if source.origin.wheel is not None:
                words = (*options, "--", *locking.HASHED) if file else (*flags, str(source.origin.wheel))
                yield Step(f"{name}: {source.origin.wheel}.", words, file)
            elif source.origin.kind == "checkout":
                yield from self._binaries(name, source)
            else:
                title = f"{name}: the wheel that was built above."
                if f"install.{name}" not in self._lists:
                    yield Step(title, flags, "", name)
                    continue
                # First its dependencies, with hashes; then its own wheel, which must need nothing else.
                before = (*self._install_options(), "--", *locking.HASHED) if file else ()
                yield Step(title, ("--complete", *options, "--", "--no-deps"), file, name, before)

    def _binaries(self, name: str, source: Source) -> Iterator[Step]:
        """For a mounted checkout with `binaries`: keep the release's wheel as a file, and install its dependencies."""
        if source.binaries is None:
            return
        folder, file = wheel_folder(name), self._list(f"binaries.{name}")
        keep = ("--keep", folder, "--", *(locking.HASHED if file else (str(source.binaries),)))
        title = f"{name}: what {source.binaries} depends on"
        if f"install.{name}" not in self._lists:
            needs = (*self._install_options(), "--needs-of", folder)
            yield Step(f"{title}; keeps its wheel for the mounted checkout.", needs, file, before=keep)
            return
        yield Step(f"{name}: {source.binaries} as a file, for the mounted checkout.", keep, file)
        if file := self._list(f"install.{name}"):
            yield Step(f"{title}.", (*self._install_options(), "--", *locking.HASHED), file)

    def _built(self, name: str, source: Source) -> BuiltSource:
        origin, install = source.origin, source.install
        folder, inputs = f"/src/{name}", f"/src/inputs/{name}"
        git: list[tuple[str, ...]] = []
        sdist: tuple[str, ...] = ()
        copy = own_path(origin.folder.path) if origin.folder is not None else ""
        if copy:
            label = f"{name}: the folder {copy} of the project."
        elif origin.pypi is not None:
            sdist = (origin.pypi.name, origin.pypi.version, folder, *locking.sdist_hash(name, self.lock))
            label = f"{name}: {origin.pypi} of the package index."
        else:
            without = [word for path in source.submodule_origins for word in ("--without", path)]
            git.append((*without, *self._fetch(name, origin.git or "", origin.git_ref, folder)))
            for path, fork in source.submodule_origins.items():
                git.append(self._fetch(f"{name}/{path}", fork.git, fork.ref, f"{folder}/{path}"))
            label = f"{name}: {origin.git_ref} of {origin.git}."
        env = [Pair(key, value) for key, value in install.env.items()]
        for key, one in install.inputs.items():
            git.append(self._fetch(f"{name}.{key}", one.git, one.ref, f"{inputs}/{key}"))
            env.append(Pair(one.variable, f"{inputs}/{key}{'/' + one.folder if one.folder else ''}"))
        early = self.patches[name].split(source.package)[0] if name in self.patches else ()
        patch_source = PatchStep(early, ((folder, *_mounted(early)),)) if early else None
        return BuiltSource(
            name, label, folder, copy, tuple(git), sdist, patch_source,
            requires=self._pip(f"requires.{name}", install.requires, ()),
            inputs=inputs if install.inputs else "",
            env=tuple(env),
            build_words=(folder, "/wheels", *install.prepare),
        )  # fmt: skip

    def _fetch(self, key: str, url: str, ref: str, folder: str) -> tuple[str, ...]:
        """The arguments of fetch-git for a repository; ``key``: its name in the lock."""
        wanted, full_name = locking.git_words(self.lock.git.get(key) if self.lock else None, ref)
        return (url, wanted, folder, *((full_name,) if full_name else ()))

    def _patch_installed(self) -> PatchStep | None:
        """One step for all Python-only patches, so that an edit of one re-runs one step."""
        patches: list[Patch] = []
        commands = []
        for name, series in self.patches.items():
            source = self.profile.sources[name]
            early, late = series.split(source.package)
            if early and source.origin.wheel is not None:
                raise ValueError(
                    f"sources.{name}: {early[0].path} changes more than Python code, and a wheel is not built"
                )
            if late:
                patches += late
                commands.append((source.package, *_mounted(late)))
        return PatchStep(tuple(patches), tuple(commands)) if patches else None

    @property
    def data(self) -> dict[str, str]:
        """The files of this profile, by their path in the stage `scripts`; some are copied into the image."""
        head = f"# {WRITTEN} from envgen.lock.\n"
        found = {self._list(step): head + text for step, text in self._lists.items() if text}
        runtime = f"/profiles/{self.profile.name}/runtime"
        if manifest := locking.manifest(self.profile, self.lock):
            found[f"{runtime}/manifest.json"] = manifest
        # One source per line.
        if sources := ",\n".join(map(json.dumps, self._mounted_sources())):
            found[f"{runtime}/sources.json"] = f'{{"#": "{WRITTEN}", "sources": [\n{sources}\n]}}\n'
        return found

    def _mounted_sources(self) -> Iterator[dict[str, object]]:
        """The data of envgen-install about each mounted source."""
        for name, source in self.profile.mounted_sources.items():
            yield {
                "name": name,
                "package": source.package,
                "distribution": source.distribution,
                "mount": source.mount.path,
                "requires": source.install.requires,
                "env": dict(source.install.env),
                "prepare": source.install.prepare,
                "dependencies": source.install.dependencies and source.binaries is None,
                "install_options": self._install_options(name),
                "binaries": str(source.binaries or ""),
                "wheel": wheel_folder(name) if source.binaries else "",
                "precompiled": PRECOMPILED.get(source.package, {}) if source.binaries else {},
            }

    @property
    def labels(self) -> tuple[Pair, ...]:
        """The image's labels, without the render digest."""
        profile, lock = self.profile, self.lock
        base = lock.base if lock else None
        patches = [f"{series.folder}/{patch.name}" for series in self.patches.values() for patch in series.patches]
        values = {
            "dev.envgen.project": profile.project,
            "dev.envgen.profile": profile.name,
            "dev.envgen.lock": lock.digest if lock else "",
            "org.opencontainers.image.base.name": str(profile.base.image),
        }
        more = {
            "org.opencontainers.image.base.digest": base.digest if base and base.resolved != LOCAL else "",
            "dev.envgen.patches": " ".join(name.removeprefix("patches/") for name in patches),  # in order
        }
        return tuple(Pair(*one) for one in (*values.items(), *(one for one in more.items() if one[1])))


def wheel_folder(source: str) -> str:
    """The folder in the image with the wheel of a mounted source's `binaries`."""
    return f"/opt/envgen/wheels/{source}"


def _encoding(name: str, encoding: Encoding) -> tuple[str, ...]:
    return (f"/encodings/{name}.tiktoken", encoding.sha256, encoding.url)


def _mounted(patches: Iterable[Patch]) -> list[str]:
    return [f"{RUN}/{patch.path}" for patch in patches]


def _listed(names: Iterable[str]) -> str:
    """Names for a comment, without version ranges."""
    return ", ".join(re.split(r"[\s<>=!~;\[]", name, maxsplit=1)[0] for name in names) + "."
