"""The patched sources that `envgen patch` works on, and their checkouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.errors import UsageError
from envgen.patches.source import PatchedSource
from envgen.profile.model import Project


def find_targets(session: Session, names: Sequence[str] = ()) -> list[PatchedSource]:
    """The patched sources of the chosen profile; if none was chosen, of all profiles, each origin once."""
    project = session.loaded().project
    profiles = [session.profile()] if session.profile_name else list(project.profiles.values())
    found: dict[tuple[str, str, str], PatchedSource] = {}
    for profile in profiles:
        for target in Deployment(profile, project.root).to_build().patched_sources:
            found.setdefault((target.name, target.folder, repr(target.source.origin)), target)
    known = sorted({target.name for target in found.values()})
    if not known:
        where = f"profile {profiles[0].name}" if session.profile_name else "any profile"
        hint = "write `patches: NAME` into a source that is not a mounted checkout (docs/lock.md)"
        raise UsageError(f"no source of {where} has patches", hint=hint)
    for name in names:
        if name not in known:
            raise UsageError(f"no source {name!r} with patches", hint=f"there is {', '.join(known)}")
    return [target for target in found.values() if not names or target.name in names]


def one_target(session: Session, name: str | None) -> PatchedSource:
    """The source that a command works on. UsageError if several could be meant."""
    found = find_targets(session, (name,) if name else ())
    kinds = {target.folder for target in found}
    if len(kinds) > 1:
        raise UsageError("more than one source has patches", hint=f"name one: {', '.join(t.name for t in found)}")
    return found[0]


def new_target(session: Session, name: str | None, title: str) -> tuple[PatchedSource, str]:
    """Where a new patch goes, and what the user must still write into the project file ("" if nothing).

    A source without `patches` gets a folder with its own name.
    """
    loaded = session.loaded()
    profiles = [session.profile()] if session.profile_name else list(loaded.project.profiles.values())
    sources = {(key, profile.name): source for profile in profiles for key, source in profile.sources.items()}
    built = {place[0]: place for place, source in reversed(sources.items()) if source.origin.kind != "checkout"}
    known = sorted({key for key, _ in sources})
    wanted = [name] if name is not None else known
    if name is None and title in known:
        raise UsageError(f"{title} is a source, and the patch has no name", hint=f"envgen patch new NAME {title}")
    if any(sources[place].patches for key, place in built.items() if key in wanted) or not set(wanted) & set(known):
        return one_target(session, name), ""
    if len(wanted) > 1:
        raise UsageError("more than one source could be patched", hint=f"name one: {', '.join(known)}")
    key, profile_name = place = built.get(wanted[0]) or next(one for one in sources if one[0] == wanted[0])
    source = replace(sources[place], patches=sources[place].patches or key)
    at = loaded.trees[profile_name].items["sources"].items[key].key_place()
    written = f"write `patches: {source.patches}` into sources.{key} ({at.file}:{at.line}), so that builds apply it"
    lines = [] if sources[place].patches else [written]
    if key not in built:
        lines.append(f"no profile builds {key} yet, and a mounted checkout is not patched")
    return PatchedSource(key, profile_name, source, loaded.project.root), "; ".join(lines)


def _folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    return folder


def checkout_of(project: Project, name: str, given: Path | None) -> Path:
    """The folder of a source's mounted checkout on this machine."""
    if given is not None:
        return _folder(given)
    for profile in project.profiles.values():
        source = profile.sources.get(name)
        if source is not None and source.origin.checkout is not None:
            path = Path(source.origin.checkout.path).expanduser()
            return _folder(path if path.is_absolute() else (project.root / path).resolve())
    raise UsageError(f"no profile mounts a checkout of {name}", hint="name one with --checkout DIR")
