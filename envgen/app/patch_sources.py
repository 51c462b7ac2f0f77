"""The sources with patches that `envgen patch` works on, their checkouts, and which profiles apply
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.errors import UsageError
from envgen.patches.series import in_range
from envgen.patches.source import PatchedSource
from envgen.profile.model import Profile, Project
from envgen.profile.tree import file_text
from envgen.render.locking import built_version, lock_of


def find_targets(session: Session, names: Sequence[str] = ()) -> list[PatchedSource]:
    """The sources with patches of the chosen profile; if none was chosen, of all profiles, each
    origin once.
    """
    targets: dict[tuple[str, str, str], PatchedSource] = {}
    for target in _described(session):
        if target.source.patches:
            key = (target.name, target.folder, repr(target.source.origin))
            targets.setdefault(key, target)
    known = sorted({target.name for target in targets.values()})
    if not known:
        hint = "`envgen patch new NAME SOURCE` makes the first one"
        raise UsageError("no source has patches", hint=hint)
    for name in names:
        if name not in known:
            raise UsageError(
                f"no source {name!r} with patches", hint=f"there is {', '.join(known)}"
            )
    return [target for target in targets.values() if not names or target.name in names]


def _described(session: Session) -> Iterator[PatchedSource]:
    """The sources of the chosen profile, or of all, with the mounted checkouts that are there and
    have a history.
    """
    project = session.loaded().project
    for profile in session.profiles():
        for described in Deployment(profile, project.root).to_build().described_sources:
            folders: dict[Path, None] = {}
            for other in project.profiles.values():
                if described.name in other.checkouts:
                    folder = other.checkouts[described.name].below(project.root)
                    if (folder / ".git").exists():
                        folders[folder] = None
            yield replace(described, checkouts=tuple(folders))


def _distance(target: PatchedSource) -> int:
    """How far a source is from being edited: its checkout is there, is named, or there is none."""
    if target.mounted is None:
        return 2
    return 0 if target.mounted.is_dir() else 1


@dataclass(frozen=True)
class NewPatch:
    """Where a new patch goes: a source, and all profiles of the project."""

    target: PatchedSource
    project: Project
    wanted: str  # the profile that was chosen; "" if none was

    @cached_property
    def _builders(self) -> dict[str, Profile]:
        """The profiles that build the source, or install its wheel."""
        name = self.target.name
        builders = {}
        for key, profile in self.project.profiles.items():
            if name in profile.sources and name not in profile.mounted_sources:
                builders[key] = profile
        return builders

    @cached_property
    def _chain(self) -> list[str]:
        """The chosen profile, or the target's, and those that it extends, as the project file has
        it.
        """
        file = self.project.file
        profiles = yaml.safe_load(file_text(file, file.name))["profiles"]
        chain = []
        name = self.wanted or self.target.profile.name
        while name:
            chain.append(name)
            parent = (profiles[name] or {}).get("extends")
            name = str(parent or "")
        return chain

    def takers(self, applies_to: str) -> list[str]:
        """The profiles that build a release which a patch for ``applies_to`` is for, with this
        series.
        """
        name = self.target.name
        folder = self.target.source.patches
        takers = []
        for key, profile in self._builders.items():
            is_same = profile.sources[name].patches == folder
            if is_same and in_range(applies_to, self._built(key)):
                takers.append(key)
        return takers

    def _built(self, profile: str) -> str:
        """The release that a profile builds or installs; "" if it is not known."""
        builder = self._builders[profile]
        lock = lock_of(builder, self.project.root)
        return built_version(builder.sources[self.target.name], lock)

    def image_of(self) -> str:
        """The profile whose image gets the edits: itself, or the one that it extends; "" if none is
        built.
        """
        return next((name for name in self._chain if name in self._builders), "")

    def next_taker(self) -> str:
        """The profile that should name the series: the image's, where it lacks it, or the only one;
        "" if unclear.
        """
        without = [
            key
            for key, profile in self._builders.items()
            if not profile.sources[self.target.name].patches
        ]
        if image := self.image_of():
            lacking = [*takewhile(without.__contains__, self._chain[self._chain.index(image) :])]
            return lacking[-1] if lacking else ""
        return without[0] if len(without) == 1 else ""

    def name_series(self, profile: str) -> None:
        """Write the line into the project file. UsageError, with nothing written, where its text is
        too special.
        """
        file = self.project.file
        line = ("patches", self.target.source.patches or "")
        text = file_text(file, file.name)
        path = ("profiles", profile, "sources", self.target.name)
        after = with_line(text, path, line)
        expected = yaml.safe_load(text)
        at = expected
        for key in path:
            at[key] = at.get(key) or {}
            at = at[key]
        at[line[0]] = line[1]
        if yaml.safe_load(after) != expected:
            raise UsageError(
                f"{file.name} has anchors or merges there", hint="write the line by hand"
            )
        files.write(files.inside(file, file.parent), after.encode())


def with_line(text: str, path: Sequence[str], line: tuple[str, str]) -> str:
    """A project file with one more key in the mapping at ``path``, which is made where it is
    missing.
    """
    node: Any = yaml.compose(text, yaml.BaseLoader)
    key, value = line
    for count, name in enumerate(path):
        below = next((one for at, one in node.value if at.value == name), None)
        if not isinstance(below, yaml.MappingNode):
            for missing in reversed(path[count + 1 :]):
                key, value = missing, f"{{{key}: {value}}}"
            key, value = name, f"{{{key}: {value}}}"
            break
        node = below
    if node.flow_style:
        at = node.start_mark.index + 1
        comma = ""
        if node.value:
            _, last = node.value[-1]
            at = last.end_mark.index
            comma = ", "
        return f"{text[:at]}{comma}{key}: {value}{text[at:]}"
    first = node.value[0][0].start_mark
    at = first.index - first.column
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{text[:at]}{' ' * first.column}{key}: {value}{newline}{text[at:]}"


def new_target(session: Session, name: str | None, title: str) -> NewPatch:
    """Where a new patch goes. A source without `patches` gets a folder with its own name."""
    described = [*_described(session)]
    known = sorted({one.name for one in described})
    if name is None and title in known:
        raise UsageError(
            f"{title} is a source, and the patch has no name", hint=f"envgen patch new NAME {title}"
        )
    if name is not None and name not in known:
        raise UsageError(f"no source {name!r}", hint=f"there is {', '.join(known) or 'none'}")
    series = {one.name for one in described if one.source.patches}
    wanted = [name] if name else sorted(series) if len(series) == 1 else known
    if len(wanted) != 1:
        hint = f"name one: envgen patch new NAME SOURCE; there is {', '.join(known)}"
        raise UsageError("more than one source could be patched", hint=hint)
    owners = [one for one in described if one.name == wanted[0]]
    folders = sorted({folder for owner in owners if (folder := owner.source.patches)})
    if len(folders) > 1:
        raise UsageError(
            f"{wanted[0]} has several series: {', '.join(folders)}", hint="add -p PROFILE"
        )
    target = min(owners, key=_distance)
    source = replace(target.source, patches=(*folders, wanted[0])[0])
    project = session.loaded().project
    return NewPatch(replace(target, source=source), project, session.profile_name or "")


def checkout_of(target: PatchedSource, given: Path | None) -> Path:
    """The checkout of a source on this machine: the one of its profile, else the first that is
    there.
    """
    folder = given or target.mounted or next(iter(target.checkouts), None)
    if folder is None:
        raise UsageError(
            f"no profile mounts a checkout of {target.name}", hint="name one with --checkout DIR"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="name another with --checkout DIR")
    return folder
