"""A profile's image on an engine, its lock and its patches, and the files that it is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from envgen.engine.values import ContainerMount, Image
from envgen.errors import (
    Problem,
    RefusedError,
)
from envgen.lock.ask import locked
from envgen.lock.model import LOCAL, InputChange, Lock, ProfileLock, load
from envgen.profile.model import Mode
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import changed
from envgen.render.locking import LABEL as LOCK_LABEL
from envgen.render.locking import applied, built_version, left_out, namespace, places_of, series_of
from envgen.render.outputs import RENDER_LABEL, Rendered, Workspace, lay_out, render_profile
from envgen.text import first_of

if TYPE_CHECKING:
    from envgen.patches.series import Series
    from envgen.patches.source import PatchedSource

from envgen.deployment.host import Host

B = TypeVar("B", bound="BuiltImage")
_AFTER_LABELS = 2  # instructions of a Dockerfile after its labels: ENTRYPOINT, CMD


@dataclass(frozen=True)
class BuiltImage(Host):
    """The image of a profile, and what it was built from. The lock is read once, and the files are
    rendered once. ``own_lock``: in place of the lock file, for what is tried before it is written.
    """

    own_lock: Lock | None = field(default=None, repr=False)

    @cached_property
    def image(self) -> Image | None:
        """The profile's image on the engine; None if it is not built."""
        return self.engine.image(self.profile.image_name)

    @cached_property
    def lock_file(self) -> Lock | None:
        """envgen.lock; None without that file. ProjectError with all that is wrong in it."""
        return self.own_lock or load(self.root)

    @cached_property
    def locked(self) -> ProfileLock | None:
        """The part of envgen.lock for the profile; None without that file."""
        return locked(self.profile, self.lock_file) if self.lock_file else None

    @cached_property
    def lock(self) -> ProfileLock | None:
        """The lock to compare the image by: that of the lock file, or none if the image was built
        without one.
        """
        return None if self.image and self.image.labels.get(LOCK_LABEL) == "" else self.locked

    @cached_property
    def platform(self) -> str:
        """The platform of the image: the profile's, else the engine's."""
        chosen = self.profile.base.platform
        return chosen.value if chosen else f"linux/{self.engine.info().arch}"

    @cached_property
    def base_moved(self) -> str:
        """What is wrong with a base image that was locked as one of this engine: "is missing", ...;
        "": nothing.
        """
        base = self.lock.base if self.lock else None
        if base is None or base.resolved != LOCAL:
            return ""
        image = self.engine.image(base.name)
        if image is None:
            return "is missing"
        return "" if image.id == base.digest else "has another ID"

    @cached_property
    def other_base(self) -> str:
        """The ID of the base image that is here, if it is not the one in the lock; "" otherwise."""
        base = self.lock.base if self.lock else None
        if base is None:
            return ""
        image = self.engine.image(base.name)
        if image is None:
            return ""
        locked = {base.digest, *base.platforms.values()}
        return "" if locked & image.digests else image.id

    @cached_property
    def needs_lock(self) -> bool:
        """Whether `envgen build` would refuse, because a production profile is in no lock."""
        return self.profile.mode is Mode.PRODUCTION and self.locked is None

    def to_build(self: B, *, unlocked: bool = False) -> B:
        """The same with the current lock file, whatever the image was built with. ``unlocked``:
        with none.
        """
        made = replace(self)  # a fresh copy: nothing rendered with another lock
        return made.with_cached(lock=None if unlocked else made.locked)

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """Source -> its patches, of the sources that a build patches. ProjectError with everything
        wrong in them.
        """
        return series_of(self.profile, self.root)

    @property
    def patched_sources(self) -> list[PatchedSource]:
        """The sources with patches, at their locked commits and versions."""
        return [one for one in self.described_sources if one.source.patches]

    @property
    def described_sources(self) -> list[PatchedSource]:
        """All sources, at their locked commits and versions."""
        from envgen.patches.source import PatchedSource

        lock = self.lock
        described = []
        for name, source in self.profile.sources.items():
            version = built_version(source, lock)
            one = PatchedSource(name, self.profile, source, self.root, "", version)
            if lock:
                commit = lock.git[name].commit if name in lock.git else ""
                one = replace(one, commit=commit, pins=lock.pins(source.distribution))
            described.append(one)
        return described

    @cached_property
    def rendered(self) -> Rendered:
        """The files as rendered for the image, in memory."""
        return render_profile(self.profile, self.lock, root=self.root, series=self.series)

    @property
    def is_current(self) -> bool:
        """Whether the image was built from what is rendered now."""
        if self.image is None or self.image.committed:
            return False
        return self.image.labels.get(RENDER_LABEL) == self.rendered.digest and not self.built_upon

    @cached_property
    def built_upon(self) -> bool:
        """Whether the image is another one, FROM envgen's, whose labels it has inherited."""
        steps = self.engine.steps(self.image.id) if self.image else []
        ours = [number for number, step in enumerate(steps) if RENDER_LABEL in step]
        return bool(ours) and ours[0] > _AFTER_LABELS

    @property
    def outdated(self) -> list[InputChange]:
        """What has changed since the image was built, as far as its labels tell."""
        if self.image is None or self.is_current:
            return []
        changes = changed(self.image.labels.get(INPUTS_LABEL, ""), self.rendered.inputs)
        return [
            one for one in changes if one.after or not (self.root / one.name).is_file()
        ]  # `left_out` says that

    @property
    def image_problems(self) -> tuple[Problem, ...]:
        """Whether the image is missing, or another one than what is rendered now."""
        if self.is_current:
            return ()
        what = "is not built"
        if self.image is not None:
            is_ours = RENDER_LABEL in self.image.labels
            what = "differs from the profile" if is_ours else "was not built by envgen"
            if self.image.committed and is_ours:
                what = "was made by `docker commit`, so its labels are those of another image"
            elif self.built_upon:
                what = "was built FROM an image of envgen, so its labels are those of another image"
            if changes := first_of([str(one) for one in self.outdated], 4):
                what += f" ({'; '.join(changes)})"
        hint = self.profile.hint("build")
        if self.needs_lock:
            hint = f"{self.profile.lock_command} && {hint}"
        return (Problem(f"the image {self.profile.image_name} {what}", hint=hint),)

    @property
    def left_out(self) -> list[str]:
        """A sentence for each source with patches that are not for the version that is built."""
        return left_out(self.profile, self.lock, self.series)

    @cached_property
    def workspace(self) -> Workspace:
        """The rendered files, in the project's folder or a temporary one; written on first use."""
        return lay_out(self.rendered, self.profile, self.root)

    @cached_property
    def own_files(self) -> dict[str, Path]:
        """Key -> the file or folder of this machine that the profile names there for its builds. It
        may not exist.
        """
        profile = self.profile
        named = {
            "pip.netrc": profile.pip.netrc,
            "network.ca_certificates": profile.network.ca_certificates,
            "build.wheelhouse": profile.build.wheelhouse,
        }
        return {key: one.below(self.root) for key, one in named.items() if one}

    @property
    def missing_files(self) -> tuple[Problem, ...]:
        """A problem for each of ``own_files`` that does not exist."""
        problems = []
        for key, path in self.own_files.items():
            kind = "folder" if key == "build.wheelhouse" else "file"
            if not (path.is_dir() if kind == "folder" else path.is_file()):
                message = f"{key}: {kind} {path} does not exist"
                problems.append(Problem(message, hint=f"correct {key}, or unset it"))
        return tuple(problems)

    def require_own_files(self) -> dict[str, Path]:
        """``own_files``. RefusedError with all that do not exist."""
        if problems := self.missing_files:
            raise RefusedError(problems=problems)
        return self.own_files

    @cached_property
    def cache_key(self) -> str:
        """The key of the kernel cache that `envgen up` mounts; "" if there is none."""
        return namespace(self.profile, self.lock, applied(self.profile, self.lock, self.series))

    @cached_property
    def caches(self) -> dict[str, ContainerMount]:
        """The caches by name, as `envgen up` mounts them. They may not exist yet."""
        places = places_of(self.profile, self.root, self.cache_key)
        mounts = [ContainerMount(*place) for place in places]
        return dict(zip(self.profile.caches, mounts, strict=True))
