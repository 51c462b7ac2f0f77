"""An upgrade on paper: the text of the project file and the lock as they would be. Nothing of the
project changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

from envgen.app import lock as locks
from envgen.app.session import Candidate, Session
from envgen.app.upgrade import journal
from envgen.errors import EnvgenError, LockError, RefusedError, UsageError
from envgen.lock.ask import Upgrade, checked, locked
from envgen.lock.model import InputChange, Lock, changes, facts_of, load
from envgen.lock.servers import resolve_image
from envgen.patches.source import GitTree, PatchedSource
from envgen.profile import tree
from envgen.profile.edit import with_value
from envgen.profile.model import Profile, Source
from envgen.profile.values import ImageRef, Pin, version_of_ref
from envgen.text import progress, size

_ASKED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:(==|@)(\S+))?")
_CMAKE = re.compile(r"CMakeLists\.txt$|\.cmake$")
_SET = re.compile(r'\bset\(\s*(\w+)\s+"?([^\s")]+)')
_FETCH = re.compile(
    r'GIT_REPOSITORY\s+"?([^\s"]+)(?:(?!GIT_REPOSITORY).)*?GIT_TAG\s+"?([^\s")]+)', re.DOTALL
)
_FIRST = re.compile(r"(flashinfer|torch)\b")  # a change of these changes kernels


@dataclass
class Draft:
    """A project file that is being changed. ``names``: the inputs that are resolved again."""

    session: Session
    old: Lock
    text: str
    names: list[str] = field(default_factory=list)
    unpinned: list[str] = field(default_factory=list)  # sources that get the newest version
    sizes: Mapping[str, int] = field(default_factory=dict)  # of packages, as the index has them

    @property
    def made(self) -> Session:
        """The session with this file."""
        return self.session.with_(candidate=Candidate(self.text, self.old))

    def set(self, key: str, value: str) -> None:
        """Write a value at its place in the file."""
        now = self.made.loaded(local=False)
        self.text = with_value(self.text, now.place_of(now.chosen, key), key, value)

    def pin(self, name: str, version: str) -> None:
        """Write the version of a source's wheel; "": the newest."""
        wheel = self.made.profile(local=False).sources[name].origin.wheel
        assert wheel is not None
        pin = Pin.parse(str(replace(wheel, version=version)))
        self.set(f"sources.{name}.origin.wheel", str(pin))

    def resolved(self) -> Session:
        """The session with this file, and a lock for it. LockError with all problems."""
        made = self.made
        before = self.session.loaded(local=False).project.profiles
        loaded = made.loaded(local=False)
        chosen = loaded.project.profiles[loaded.chosen]
        shared = [
            profile  # the same line may be theirs, too
            for name, profile in loaded.project.profiles.items()
            if name in self.old.python and name != chosen.name and profile != before[name]
        ]
        outcome = locks.resolve(made, [chosen, *shared], self.old, Upgrade(tuple(self.names)))
        if outcome.problems:
            raise LockError(problems=locks.problems_of(loaded, outcome.problems))
        for note in outcome.notes:
            self._require_agreement(chosen, note)
            progress(f"note: {note}")
        self.sizes = outcome.sizes
        of = journal.state_of(loaded.project)
        return made.with_(candidate=Candidate(self.text, outcome.lock, of=of))

    def _require_agreement(self, profile: Profile, note: str) -> None:
        """LockError if a note says that others pin what is asked for, and the owner has not
        insisted.
        """
        named = [
            profile.sources[name].distribution for name in self.names if name in profile.sources
        ]
        pinned = [one for one in named if one in note and one not in profile.pip.override]
        if pinned and note.startswith(f"{profile.name}: no versions suit"):
            insist = f"pip: {{override: [{', '.join(pinned)}]}}"
            raise LockError(note, hint=f"to insist on it, write {insist}, and type this again")


def draft(session: Session) -> Draft:
    """The project as it is. RefusedError without a lock: there is nothing to compare with."""
    project = session.loaded(local=False).project
    old = load(project.root)
    if old is None or session.profile(local=False).name not in old.python:
        hint = session.profile().lock_command
        raise RefusedError("an upgrade starts from what is locked, and nothing is", hint=hint)
    return Draft(session, old, tree.file_text(project.file, project.file.name))


def proposed(session: Session, asked: Sequence[str]) -> Session:
    """The session of the candidate that ``asked`` (SOURCE, SOURCE==VERSION, SOURCE@REF, base==TAG)
    describes. UsageError, LockError.
    """
    plan = draft(session)
    for word in asked:
        if not (parts := _ASKED.fullmatch(word)):
            raise UsageError(f"{word!r} is not an input", hint="write it like vllm==0.33.0")
        try:
            ask_for(plan, *(part or "" for part in parts.groups()))
        except ValueError as error:  # no version, tag or image
            raise UsageError(f"{word}: {error}") from None
    made = plan.resolved()
    for name in plan.unpinned:
        profile = made.profile(local=False)
        now = locked(profile, made.tried.lock)
        plan.pin(name, now.version(profile.sources[name].distribution))
    made = plan.resolved() if plan.unpinned else made
    _require_effect(made)
    total = sum(plan.sizes.get(one.name, 0) for one in differing(made) if one.after)
    if total:
        progress(f"to download: {size(total)} of packages at most")
    return made


def ask_for(plan: Draft, name: str, sign: str, version: str) -> None:
    """Write one input that was asked for into the draft."""
    profile = plan.session.profile(local=False)
    by_package = {canonicalize_name(one.distribution): key for key, one in profile.sources.items()}
    name = by_package.get(canonicalize_name(name), name)
    if name in profile.sources:
        _ask_source(plan, profile, name, sign, version)
    elif name == "base" and version:
        whole = "/" in version or ":" in version
        tagged = replace(profile.base.image, tag=version, digest="")
        plan.set("base.image", str(ImageRef.parse(version) if whole else tagged))
    elif version:
        plan.set(*_word(profile, name, version))
    else:
        checked([name], [profile], plan.old)
    plan.names.append(name)


def _word(profile: Profile, name: str, version: str) -> tuple[str, str]:
    """The key and the new text of a package among pip.tools and pip.deps. UsageError."""
    for kind in ("tools", "deps"):
        for number, word in enumerate(getattr(profile.pip, kind)):
            package = re.match(r"[\w.-]+(\[[^]]*\])?", word)
            if package and canonicalize_name(package[0].partition("[")[0]) == name:
                return f"pip.{kind}.{number}", f"{package[0]}=={version}"
    known = ", ".join(["base", *profile.sources])
    raise UsageError(
        f"profile {profile.name} names no {name}, so no line has its version",
        hint=f"add `{name}=={version}` to pip.deps; named are: {known}",
    )


def _ask_source(plan: Draft, profile: Profile, name: str, sign: str, version: str) -> None:
    source = profile.sources[name]
    origin = source.origin
    key = f"sources.{name}.origin"
    ref = f"v{version or '0.33.0'}" if sign != "@" else version
    if origin.checkout is not None:
        raise UsageError(
            f"{name} is your checkout {origin.checkout}, which envgen leaves alone",
            hint=f"git -C {origin.checkout} checkout {ref}; its wheel is that of the profile that "
            "this one extends: add --profile to upgrade that",
        )
    if origin.git is not None:
        if not version or origin.ref is None:
            raise UsageError(f"{name} is built from git", hint=f"envgen upgrade {name}@v0.33.0")
        plan.set(f"{key}.ref", version)
        _ask_inputs(plan, name, source, version)
    elif sign == "@":
        raise UsageError(f"{name} is a wheel", hint=f"envgen upgrade {name}==VERSION")
    elif version or (origin.wheel and origin.wheel.version):
        plan.pin(name, version)
        plan.unpinned += [] if version else [name]


def _ask_inputs(plan: Draft, name: str, source: Source, ref: str) -> None:
    """Write what the CMake files at ``ref`` fetch, and what says the old version; name the rest."""
    key = f"sources.{name}.install"
    left = []
    session = plan.session
    described = PatchedSource(name, session.profile(), source, session.loaded().project.root)
    try:
        tree = described.unpatched(ref)
        assert isinstance(tree, GitTree)
        files = tree.read([one for one in tree.listed if _CMAKE.search(one)])
        fetched = fetched_by(
            "\n".join(one.data.decode("utf-8", "replace") for one in files.values())
        )
    except EnvgenError as error:
        progress(f"note: its CMake files could not be read: {error.message}")
        fetched = {}
    for called, repository in source.install.inputs.items():
        now = fetched.get(_plain(repository.git))
        if now is None:
            left.append(f"{key}.inputs.{called}")
        elif now != repository.ref:
            plan.set(f"{key}.inputs.{called}.ref", now)
    for variable, value in source.install.env.items():
        if value == source.origin.version and version_of_ref(ref):
            plan.set(f"{key}.env.{variable}", version_of_ref(ref))
    if left:
        progress(f"note: compare with the CMake files of {ref}: {', '.join(left)}")


def fetched_by(text: str) -> dict[str, str]:
    """Repository -> the tag or commit that CMake files fetch of it."""
    values = {f"${{{name}}}": value for name, value in _SET.findall(text)}
    pairs = _FETCH.findall(text)
    return {_plain(values.get(url, url)): values.get(tag, tag) for url, tag in pairs}


def _plain(url: str) -> str:
    return url.lower().removesuffix("/").removesuffix(".git")


def _require_effect(made: Session) -> None:
    """UsageError if envgen.local.yaml or a variable sets what the upgrade changes."""
    shared = made.profile(local=False)
    here = made.profile()
    for name, source in shared.sources.items():
        origin = here.sources[name].origin
        if origin != source.origin and origin.checkout is None:
            raise UsageError(
                f"sources.{name}.origin is another one here, so this changes nothing",
                hint="envgen.local.yaml, or a variable ENVGEN_..., sets it",
            )


def newest(session: Session) -> Session:
    """The session with the newest release of each source and package that its lines allow."""
    plan = draft(session)
    profile = session.profile(local=False)
    plan.names += ["pip", *profile.sources]
    for name, source in profile.sources.items():
        if source.origin.wheel and source.origin.wheel.version:
            plan.pin(name, "")
    for kind in ("tools", "deps"):
        for number, word in enumerate(getattr(profile.pip, kind)):
            if "==" in word:
                plan.set(f"pip.{kind}.{number}", word.partition("==")[0])
    return plan.resolved()


def moved_base(session: Session) -> str:
    """A sentence if the registry has another image under the base image's name; "" if not, or if it
    does not answer.
    """
    plan = draft(session)
    image = session.profile(local=False).base.image
    held = plan.old.images.get(str(image))
    try:
        now = resolve_image(image)
    except LockError:
        return ""
    moved = held is not None and held.digest != now.digest
    return f"base {image}: its registry has another image; `envgen lock --upgrade base`" * moved


def differing(made: Session, before: Candidate | None = None) -> list[InputChange]:
    """What it changes of ``before`` (None: the project's files), FlashInfer's and torch's packages
    first.
    """
    old = _by_package(made.with_(candidate=before))
    moved = changes(old, _by_package(made))
    return sorted(moved, key=lambda one: (not _FIRST.match(one.name), one.name))


def _by_package(session: Session) -> dict[str, str]:
    """What the lock has for the profile; of a package in several steps, what the last one installs."""
    lock = session.deployment().lock_file or Lock()
    facts = facts_of(locked(session.profile(local=False), lock))
    return {_package(key): value for key, value in facts.items() if not key.endswith(" sha256")}


def _package(name: str) -> str:
    """`linux/amd64 pip install.vllm torch` -> `torch`."""
    _, pip, rest = name.partition(" pip ")
    return rest.partition(" ")[2] if pip else name


def checkouts(made: Session) -> Iterator[str]:
    """How the mounted checkouts of other profiles follow the wheels that change."""
    after = {one.name: one.after for one in differing(made)}
    for profile in made.loaded(local=False).project.profiles.values():
        for source in profile.mounted_sources.values():
            if version := after.get(source.distribution):
                yield f"  {profile.name}: git -C {source.origin.checkout} checkout v{version}"


def code_of(made: Session, before: Candidate | None = None) -> Iterator[bytes]:
    """The Python of each wheel that it changes, as ``differing``. EnvgenError if it can't be known."""
    changed = {one.name for one in differing(made, before)}
    for one in made.deployment().described_sources:
        if one.source.distribution not in changed:
            continue
        if one.source.patches or not one.source.origin.wheel:
            raise EnvgenError(f"{one.name} is built, or patched")
        yield one.wheel().code()
