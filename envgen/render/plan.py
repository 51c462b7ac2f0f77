"""All decisions of a render: a profile (and a lock) becomes values that templates only print.

Pure: no clock, no environment, no working directory, no host. Patches, which are on disk, come in
as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envgen.lock.ask import apt_build
from envgen.lock.model import LOCAL, ProfileLock, with_version
from envgen.profile.model import Pip, Profile, Source, Tiktoken
from envgen.profile.names import NAMES
from envgen.profile.values import Pin
from envgen.render import environment, locking
from envgen.render.environment import RUN, WRITTEN
from envgen.render.quote import Pair

if TYPE_CHECKING:
    from envgen.patches.series import Patch, Series


@dataclass(frozen=True)
class PatchStep:
    """Patches for one step, and the arguments of the commands that apply them."""

    patches: tuple[Patch, ...]
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RunStep:
    """One command: the packages of its comment in the Dockerfile, and its arguments.

    ``locked``: its list of packages with hashes (a path in the stage `scripts`), if it has one;
    ``wheel_of``: the source whose wheel it installs; ``before``: the arguments of a command before
    it, in the same step; ``keeps``: it keeps wheels as files, and installs nothing;
    ``commands``: of a step that installs, with their programs.
    """

    title: str
    words: tuple[str, ...]
    locked: str = ""
    wheel_of: str = ""
    before: tuple[str, ...] = ()
    keeps: bool = False
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A repository in a stage of its own, so that another ref of it fetches nothing else."""

    stage: str
    label: str
    folder: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class BuiltSource:
    """A source that is fetched by git, patched and built.

    ``inputs``: the repositories that its build would fetch itself.
    """

    name: str
    label: str
    folder: str
    fetch_git: tuple[tuple[str, ...], ...]  # a step for each
    patch_source: PatchStep | None
    requires: RunStep | None
    reads_requires: bool  # they are those of its pyproject.toml
    inputs: tuple[Fetched, ...]
    env: tuple[Pair, ...]
    build_words: tuple[str, ...]


class ImagePlan:
    """Everything about the image of a profile. ``patches``: source -> its series."""

    def __init__(
        self,
        profile: Profile,
        lock: ProfileLock | None = None,
        patches: Mapping[str, Series] | None = None,
    ) -> None:
        self.profile = profile
        self.lock = lock
        self.not_locked = environment.NOT_LOCKED
        self.patches = patches or {}
        # The lock's list for each step; "": nothing to install.
        self._lists = locking.requirements(profile, lock)
        self.base_image = locking.base_image(profile.base.image, lock)
        self.epoch = str(lock.epoch) if lock else ""  # the time of all new files
        self.ca = profile.network.ca_certificates is not None
        self.wheelhouse = profile.build.wheelhouse is not None
        self._plan_tools()
        self._plan_sources()
        self._plan_environment()

    def _plan_tools(self) -> None:
        """What is installed before the sources, and with what."""
        profile = self.profile
        pip = profile.pip
        python = profile.base.python
        # A base image without Python has no package to keep.
        changes = pip.protect != Pip().protect or bool(pip.override or pip.remove)
        self.protects = changes or not profile.base.apt
        words = ["record", *pip.protect, "--off", *pip.override]
        if pip.remove:
            words += ["--remove", *pip.remove]
        self.protect_words = tuple(words)
        self.apt_build = _apt(apt_build(profile))
        self.apt_runtime = _apt(profile.apt.runtime)
        # First of all: uv is installed from that index.
        self.index_env = environment.index_env(profile)
        self.logins = environment.asks_logins(profile)
        self._with_index = (python, f"{RUN}/lib/with-index")
        self.uv_locked = self._list("uv")
        pip_install = (*self._with_index, python, "-m", "pip", "install")
        options = ("--quiet", "--no-input", "--no-deps", "--no-compile", "--target", "/opt/uv")
        uv = locking.HASHED[1:] if self.uv_locked else ("uv",)
        self.fetch_uv = (*pip_install, *options, *uv)
        self.has_compiler = "-devel" in str(profile.base.image)
        self.assumes = self.lock.assumes if self.lock else ()

    def _plan_sources(self) -> None:
        """What is built and installed, and which files of the project that reads."""
        profile = self.profile
        built = []
        for name, source in profile.sources.items():
            if source.origin.is_built:
                built.append(self._built(name, source))
        self.built = tuple(built)
        packages = (*profile.pip.tools, *profile.pip.deps)
        deps = self._pip("deps", packages, self._install_options())
        steps = [deps] if deps else []
        steps += self._installs()
        self.installs = tuple(self._with_programs(steps))
        self.patch_installed = self._patch_installed()
        read = set[str]()
        for step in (self.patch_installed, *(one.patch_source for one in built)):
            if step:
                read.update(patch.path for patch in step.patches)
        self.context_files = tuple(sorted(read))

    def _plan_environment(self) -> None:
        """Variables, folders and other files of the image."""
        profile = self.profile
        self.ccache = f"{RUN}/cache/ccache" if profile.build.ccache else ""
        # What compilers read: a stage of its own where wheels are built, which the finished image
        # starts from too.
        self.cuda_env = environment.cuda_env(profile) if self.built else []
        self.compiler = "cuda" if self.cuda_env else "base"
        pairs = environment.image_env(profile)
        self.image_env = [pair for pair in pairs if pair not in self.cuda_env]
        self.opened = environment.opened_folders(profile)  # writable by root's group
        # Of each vocabulary its place in the image, its SHA-256, and its address.
        self.encodings = []
        for name, one in profile.tiktoken.encodings.items():
            place = f"{Tiktoken.FOLDER}/{name}.tiktoken"
            self.encodings.append((place, one.sha256, one.url))

    def _list(self, step: str) -> str:
        """The file of a step's locked packages in the stage `scripts`; "" without any."""
        return f"/profiles/{self.profile.name}/locked/{step}.txt" if self._lists.get(step) else ""

    def _pip(self, step: str, words: tuple[str, ...], options: tuple[str, ...]) -> RunStep | None:
        """One step that installs ``words``, or exactly the packages that the lock lists for them."""
        if not words or self._lists.get(step) == "":
            return None
        title = _listed(words)
        file = self._list(step)
        if file:
            words = locking.HASHED
        return RunStep(title, (*options, "--", *words), file)

    def _install_options(self, *own: str) -> tuple[str, ...]:
        """Options of pip-install: the sources to install, and those that must not come from the
        index.
        """
        options = []
        for name in own:
            options += ["--own", self.profile.sources[name].distribution]
        for name, source in self.profile.sources.items():
            if name not in own:
                options += ["--never", source.distribution]
        for name in self.profile.pip.prefer:
            options += ["--prefer", name]
        return tuple(options)

    def _joined(self, step: str, parts: Iterable[str]) -> str | None:
        """One list of packages for several steps of the lock: its file, "" without packages, None
        if not locked.
        """
        lines = set()
        for name in parts:
            if name not in self._lists:
                return None
            lines.update(self._lists[name].splitlines(keepends=True))
        self._lists[step] = "".join(sorted(lines))
        return self._list(step)

    def _installs(self) -> Iterator[RunStep]:
        """The steps that install the sources: wheels of the package index, then those that were
        built.
        """
        kept = {}
        for name, source in self.profile.mounted_sources.items():
            if source.binaries is not None:
                kept[name] = source.binaries
        whole = dict[str, Source]()
        alone = dict[str, Source]()
        for name, source in self.profile.sources.items():
            if source.origin.wheel is not None:
                into = whole if source.install.dependencies else alone
                into[name] = source
        yield from self._kept(kept)
        yield from self._wheels(whole, kept)
        for name, source in alone.items():
            yield from self._wheels({name: source}, {})
        for name, source in self.profile.sources.items():
            if source.origin.is_built:
                yield self._own_wheel(name, source)

    def _own_wheel(self, name: str, source: Source) -> RunStep:
        """The step that installs the wheel that was built of a source."""
        title = f"{name}: the wheel that was built above."
        step = f"install.{name}"
        options = (*self._install_options(name), "--")
        if step not in self._lists:
            if not source.install.dependencies:
                options += ("--no-deps",)
            return RunStep(title, options, "", name)
        # First its dependencies, with hashes; then its own wheel, which must need nothing else.
        file = self._list(step)
        before = (*self._install_options(), "--", *locking.HASHED) if file else ()
        return RunStep(title, ("--complete", *options, "--no-deps"), file, name, before)

    def _kept(self, kept: Mapping[str, Pin]) -> Iterator[RunStep]:
        """The step that keeps the wheels of mounted checkouts with `binaries` as files."""
        if not kept:
            return
        pins = kept.values()
        shown = ", ".join(str(with_version(pin, self.lock)) for pin in pins)
        title = f"{shown}: wheels for the mounted checkouts."
        lists = [f"binaries.{name}" for name in kept]
        file = self._joined("binaries", lists)
        words = tuple(map(str, pins))
        if file:
            words = locking.HASHED
        yield RunStep(title, ("--keep", WHEELS, "--", *words), file or "", keeps=True)

    def _wheels(self, wheels: Mapping[str, Source], kept: Mapping[str, Pin]) -> Iterator[RunStep]:
        """One step for wheels of the package index, and for what the wheels that are ``kept``
        depend on.

        Together, so that a wheel without a version gets the one that the others ask for.
        """
        names = (*wheels, *kept)
        if not names:
            return
        step = "install" if len(names) > 1 else f"install.{names[0]}"
        file = self._joined(step, (f"install.{name}" for name in names))
        if file == "":
            return
        pins = [one.origin.wheel for one in wheels.values() if one.origin.wheel is not None]
        shown = [str(with_version(pin, self.lock)) for pin in pins]
        if kept:
            shown.append(f"what {', '.join(pin.name for pin in kept.values())} depend on")
        words = self._install_options(*wheels)
        if kept and not file:
            words += ("--needs-of", WHEELS)
            for pin in kept.values():
                for extra in pin.extras:
                    words += ("--extra", f"{pin.name}[{extra}]")
        installed = tuple(map(str, pins))
        if not all(source.install.dependencies for source in wheels.values()):
            installed = ("--no-deps", *installed)
        if file:
            installed = locking.HASHED
        words += ("--", *installed) if installed else ()
        yield RunStep(f"{', '.join(shown)}.", words, file or "")

    def _with_programs(self, steps: Iterable[RunStep]) -> Iterator[RunStep]:
        """The steps with their programs: uv where the lock says all that is installed, else
        pip-install, which also keeps packages of the base image.
        """
        python = self.profile.base.python
        prefer = set(map(canonicalize_name, self.profile.pip.prefer))
        script = (*self._with_index, python, f"{RUN}/lib/pip-install")
        install = ("uv", "pip", "install", "--system", "--break-system-packages")
        is_known = python == "python3" and not self.protects  # --system: the python3 of PATH
        uv = (*self._with_index, *install, "--compile-bytecode", *locking.HASHED)
        earlier = set[str]()
        for step in steps:
            text = self.data.get(step.locked, "")
            pinned = re.findall(r"(?m)^([a-z0-9-]+)==", text)
            here = prefer.intersection(pinned)
            commands = list[tuple[str, ...]]()
            if is_known and step.locked and not (step.keeps or step.wheel_of or earlier):
                commands.append(uv)
                again = list[str]()
                for name in sorted(here):
                    again += ("--reinstall-package", name)
                if again:  # once more, where another package brings modules of the same name
                    commands.append((*uv, *again))
            else:
                for words in (step.before, step.words):
                    if words:
                        commands.append((*script, *words))
            earlier |= here
            yield replace(step, commands=tuple(commands))

    def _built(self, name: str, source: Source) -> BuiltSource:
        origin = source.origin
        install = source.install
        folder = f"/src/{name}"
        inputs = []
        without = list[str]()
        forks = []
        for path, fork in source.submodule_origins.items():
            without += ("--without", path)
            forks.append(self._fetch(f"{name}/{path}", fork.git, fork.ref, f"{folder}/{path}"))
        own = self._fetch(name, origin.git or "", origin.ref or "", folder)
        env = [Pair(key, value) for key, value in install.env.items()]
        for key, repository in install.inputs.items():
            place = f"/src/inputs/{name}/{key}"
            words = self._fetch(f"{name}.{key}", repository.git, repository.ref, place)
            shown = f"{key}, which the build of {name} would fetch itself: {repository.ref} of {repository.git}."
            inputs.append(Fetched(f"input-{name}-{key}", shown, place, words))
            if repository.folder:
                place += f"/{repository.folder}"
            env.append(Pair(repository.variable, place))
        patch_source = None
        if name in self.patches:
            early, _ = self.patches[name].split(source.package)
            if early:
                patch_source = PatchStep(early, ((folder, *_mounted(early)),))
        requires: RunStep | None = RunStep(
            "what its pyproject.toml and its build backend ask for.",
            ("--for", name, "--needs", folder),
        )
        if install.requires:
            requires = self._pip(f"requires.{name}", install.requires, ())
        return BuiltSource(
            name,
            f"{name}: {origin.ref} of {origin.git}.",
            folder,
            ((*without, *own), *forks),
            patch_source,
            requires=requires,
            reads_requires=not install.requires,
            inputs=tuple(inputs),
            env=tuple(env),
            build_words=(folder, "/wheels", *install.prepare),
        )

    def _fetch(self, key: str, url: str, ref: str, folder: str) -> tuple[str, ...]:
        """The arguments of fetch-git for a repository; ``key``: its name in the lock."""
        locked = self.lock.git.get(key) if self.lock else None
        wanted, full_name = locking.git_words(locked, ref)
        words = (url, wanted, folder)
        return (*words, full_name) if full_name else words

    def _patch_installed(self) -> PatchStep | None:
        """One step for all patches of what is installed, so that an edit of one re-runs one step."""
        patches: list[Patch] = []
        commands = []
        for name, series in self.patches.items():
            source = self.profile.sources[name]
            _, late = series.split(source.package)
            words = [source.distribution]
            if source.origin.wheel:
                late = series.patches
                if not locking.built_version(source, self.lock):  # only the image knows it
                    words.insert(0, "--in-range")
            if late:
                patches += late
                commands.append((*words, *_mounted(late)))
        return PatchStep(tuple(patches), tuple(commands)) if patches else None

    @property
    def data_runtime(self) -> list[str]:
        """The files of this profile alone in the image."""
        return [path for path in self.data if "/runtime/" in path]

    @property
    def data(self) -> dict[str, str]:
        """The files of this profile, by their path in the stage `scripts`; some are copied into the
        image.
        """
        head = f"# {WRITTEN} from envgen.lock.\n"
        files = {self._list(step): head + text for step, text in self._lists.items() if text}
        runtime = f"/profiles/{self.profile.name}/runtime"
        if manifest := locking.manifest(self.profile, self.lock):
            files[f"{runtime}/manifest.json"] = manifest
        # One source per line.
        if sources := ",\n".join(map(json.dumps, self._mounted_sources())):
            files[f"{runtime}/sources.json"] = f'{{"#": "{WRITTEN}", "sources": [\n{sources}\n]}}\n'
        return files

    def _mounted_sources(self) -> Iterator[dict[str, object]]:
        """The data of envgen-install about each mounted source."""
        for name, source in self.profile.mounted_sources.items():
            binaries = ""
            precompiled = {}
            if source.binaries:
                binaries = str(with_version(source.binaries, self.lock))
                precompiled = NAMES["precompiled"].get(source.package, {})
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
                "binaries": binaries,
                "wheel": wheel_folder(source),
                "precompiled": precompiled,
            }

    def _versions(self) -> str:
        """The sources and their versions, where they are known."""
        known = []
        for name, source in self.profile.sources.items():
            version = ""
            if source.binaries:
                version = with_version(source.binaries, self.lock).version
            version = version or locking.built_version(source, self.lock)
            if version:
                known.append(f"{name} {version}")
        return ", ".join(known)

    @property
    def labels(self) -> tuple[Pair, ...]:
        """The image's labels, without the render digest."""
        profile = self.profile
        lock = self.lock
        base = lock.base if lock else None
        patches = []  # in order
        for series in self.patches.values():
            folder = series.folder.removeprefix("patches/")
            patches += [f"{folder}/{patch.name}" for patch in series.patches]
        values = {
            "dev.envgen.project": profile.project,
            "dev.envgen.profile": profile.name,
            "dev.envgen.lock": lock.digest if lock else "",
            "org.opencontainers.image.title": f"{profile.project} {profile.name}",
            "org.opencontainers.image.description": profile.description or "",
            # Else those of the base image would stand for this one.
            "org.opencontainers.image.version": self._versions() or profile.name,
            "org.opencontainers.image.base.name": str(profile.base.image),
            "org.opencontainers.image.base.digest": "",
            "dev.envgen.patches": " ".join(patches),
        }
        if base and base.resolved != LOCAL:
            values["org.opencontainers.image.base.digest"] = base.digest
        return tuple(Pair(name, value) for name, value in values.items() if value)


# in the image: a folder for each distribution, with the wheel of `binaries`
WHEELS = "/opt/envgen/wheels"


def wheel_folder(source: Source) -> str:
    """The folder in the image with the wheel of a mounted source's `binaries`; "" without one."""
    if source.binaries is None:
        return ""
    return f"{WHEELS}/{canonicalize_name(source.distribution)}"


def _mounted(patches: Iterable[Patch]) -> list[str]:
    return [f"{RUN}/{patch.path}" for patch in patches]


def _apt(packages: tuple[str, ...]) -> RunStep | None:
    return RunStep(_listed(packages), packages) if packages else None


def _listed(names: Iterable[str]) -> str:
    """Names for a comment, without version ranges."""
    shown = [re.split(r"[\s<>=!~;\[]", name, maxsplit=1)[0] for name in names]
    return f"{', '.join(shown)}."
