"""The session: the file, profile and overrides of a command, and the project that they select."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envgen.app.upgrade.journal import finish
from envgen.deployment import Deployment, known_service
from envgen.engine.client import Engine
from envgen.engine.compose import DOTENV, read_dotenv
from envgen.engine.owner import ours
from envgen.errors import EngineError, Problem, RefusedError, UsageError
from envgen.lock.model import Lock
from envgen.profile import unused
from envgen.profile.layers import OF_COMPOSE
from envgen.profile.load import Loaded, load_project, profile_name_of, select
from envgen.profile.model import Profile
from envgen.profile.values import ImageRef
from envgen.redact import hidden_values, secret_in
from envgen.render.environment import FLOOR_VARIABLE
from envgen.text import hide, progress

VARIANT_LABEL = "dev.envgen.variant"


@dataclass(frozen=True)
class Candidate:
    """A project as it could become: the text of its file, its lock, and what follows the name of
    its image. ``of``: the state of the files that it was made from.
    """

    text: str
    lock: Lock = field(repr=False)
    tag: str = "-candidate"
    of: str = ""


@dataclass
class Session:
    """The choices of a command line: file, profile, overrides, variant. What was read for them is
    kept beside them. ``candidate``: in place of the project's own files.
    """

    file: Path | None = None
    profile_name: str | None = None
    sets: tuple[str, ...] = ()
    variant: str = ""
    candidate: Candidate | None = None
    _loaded: dict[bool, Loaded] = field(default_factory=dict, init=False, repr=False, compare=False)
    _dotenv: dict[str, str] | None = field(
        default=None, init=False, repr=False, compare=False
    )  # once it was read

    def __post_init__(self) -> None:
        self.profile_name = profile_name_of(self.profile_name or "") or None
        if self.file is not None and self.file.is_dir():
            self.file /= "envgen.yaml"

    @property
    def tried(self) -> Candidate:
        """The candidate of a session that has one."""
        assert self.candidate is not None
        return self.candidate

    def with_(self, **choices: Any) -> Session:
        """The session with other choices; the project is loaded again."""
        return replace(self, **choices)

    def loaded(self, *, local: bool = True) -> Loaded:
        """The project with all layers; ``local=False`` leaves out envgen.local.yaml and ENVGEN_
        variables.

        UsageError for an unknown profile or variant, whether a command goes on to use it or not.
        """
        if (cached := self._loaded.get(True)) and not cached.personal:
            return cached
        if local not in self._loaded:
            if not self.candidate:
                finish(self.file)
            environ = dict(os.environ) if local else {}
            self._loaded[local] = load_project(
                file=self.file,
                text=self.candidate.text if self.candidate else None,
                sets=self.sets,
                environ=environ,
                local=local,
                profile=self.profile_name,
                variant=self.variant,
            )
            select(self._loaded[local].project, self.profile_name, self.variant)
        return self._loaded[local]

    def profile(self, *, local: bool = True) -> Profile:
        """The chosen profile: -p, else ENVGEN_PROFILE, else the project's default_profile."""
        profile = select(self.loaded(local=local).project, self.profile_name, self.variant)
        hide(hidden_values(os.environ, profile.secrets))
        tag = self.candidate.tag if self.candidate else ""
        if tag:
            image = ImageRef.parse(profile.image_name + tag)
            profile = replace(profile, image=image)
        return replace(profile, options=self._options)

    def profiles(self, *, local: bool = True) -> list[Profile]:
        """The chosen profile; if none was chosen, all."""
        if self.profile_name:
            return [self.profile(local=local)]
        return list(self.loaded(local=local).project.profiles.values())

    def warnings(self, *, local: bool = True) -> tuple[Problem, ...]:
        """Settings of the chosen profile without effect."""
        return unused.warnings(self.loaded(local=local), os.environ if local else unused.NONE)

    @property
    def _options(self) -> tuple[str, ...]:
        """--file and --set, to be repeated in hints, without values that may be secrets.

        Not -f, which means --follow in `envgen logs`.
        """
        shown = []
        for text in self.sets:
            if secret_in(text):
                key, _, _ = text.partition("=")
                text = f"{key}=..."
            shown.append(text)
        return self.with_(sets=tuple(shown)).again(str(self.file))

    def again(self, file: str) -> tuple[str, ...]:
        """--file and --set, for another command line with the same values. ``file``: the project
        file's name there.
        """
        words = ["--file", file] if self.file else []
        for text in self.sets:
            words += ["--set", text]
        return tuple(words)

    def variables(self) -> dict[str, str]:
        """The ENVGEN_... variables of this shell that change the profile or a start, for a program
        without them.
        """
        found = {}
        for name, value in sorted(os.environ.items()):
            if name == FLOOR_VARIABLE or OF_COMPOSE.fullmatch(name):
                found[name] = value
        return found

    def deployment(self) -> Deployment:
        """The profile in its folder, on Docker's default engine. Secrets that this shell lacks are
        read from `.env`.
        """
        profile = self.profile()
        root = self.loaded().project.root
        lacking = [name for name in profile.secrets if name not in os.environ]
        if lacking and self._dotenv is None:
            self._dotenv = {}
            try:
                self._dotenv.update(read_dotenv(root / DOTENV, lacking))
            except EngineError:
                pass  # no Compose, so nothing is started either
            except RefusedError as error:
                progress(f"warning: {error}")
            hide(hidden_values(self._dotenv, profile.secrets))
        lock = self.candidate.lock if self.candidate else None
        return Deployment(profile, root, dotenv=self._dotenv or {}, own_lock=lock)


def with_running_variant(
    session: Session, service: str | None, engine: Callable[[], Engine], *, stopped: bool = False
) -> Session:
    """``session`` with the variant of the running ``service`` (None: any of the profile); itself if
    none runs.

    ``engine`` connects to its engine. ``stopped``: include stopped containers.
    """
    profile = session.profile()
    root = session.loaded().project.root
    try:
        asked = engine()
        containers = asked.containers(profile.compose_name, service, all=stopped)
        local = asked.info().local
    except EngineError:
        return session  # the caller will report it
    own = ours(containers, root, local=local)
    names = {one.labels.get(VARIANT_LABEL, "") for one in own}
    variant = names.pop() if len(names) == 1 else ""
    if set(variant.split("+")) <= set(profile.variants):
        return session.with_(variant=variant)
    return session


def the_service(
    profile: Profile, wanted: str | None, fitting: Sequence[str], lacking: str, hint: str
) -> str:
    """The wanted service, or the only one in ``fitting``. UsageError; ``lacking``: the message for
    one not in it.
    """
    if wanted is not None:
        known_service(profile, wanted)
        if wanted not in fitting:
            raise UsageError(f"service {wanted} {lacking}", hint=hint)
        return wanted
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        several = f"profile {profile.name} has several: {', '.join(fitting)}"
        raise UsageError(several, hint="name one")
    raise UsageError(f"profile {profile.name} {lacking}", hint=hint)
