"""Resolve the inputs that are stale, all at the same time; the rest of the old lock stays as it is.

Packages are resolved inside the base image: with its Python, its packages and its indexes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from envgen.binding import JsonDict, JsonObject, bind
from envgen.engine.buildx import proxies
from envgen.engine.client import Engine, connect
from envgen.engine.process import in_background
from envgen.engine.values import ContainerMount, ExecResult
from envgen.errors import EngineError, EnvgenError, LockError, Problem
from envgen.files import data_dir
from envgen.inside import run
from envgen.lock import ask
from envgen.lock.ask import Upgrade, keep, python_asks, python_sets
from envgen.lock.model import LOCAL, GitLock, ImageLock, Lock, Pinned, PythonLock, model_key
from envgen.lock.servers import COMMIT, commit_of, resolve_git, resolve_image, seconds
from envgen.profile.model import Profile
from envgen.profile.service import ModelRef
from envgen.profile.values import ImageRef
from envgen.text import last_printed, progress

TIMEOUT = 900
# Key of a profile -> where a build step finds the file or folder of this machine that it names.
PLACES = {
    "network.ca_certificates": "/run/secrets/ca_certificates",
    "pip.netrc": "/run/secrets/netrc",
    "build.wheelhouse": "/run/envgen/lib/wheelhouse",
}
PROGRAM = run.Program("resolve")
# $1 Python, $2 packages, $3 with-index, $4 with-network, $5 apt-install; then the program, which
# runs as a build step would. Where the base image has no Python, the script installs it, as the
# build's first step will.
_START = """\
python=$1 packages=$2 index=$3 network=$4 install=$5
shift 5
if [ "$packages" ] && ! command -v "$python" >/dev/null; then
  sh -c "$network" sh sh -c "$install" apt-install $packages >/tmp/envgen-apt.log 2>&1 </dev/null || {
    tail -n 20 /tmp/envgen-apt.log >&2
    exit 100
  }
fi
command -v "$python" >/dev/null || exit 101
folder=$(mktemp -d)
printf %s "$index" >"$folder/with-index"
printf %s "$network" >"$folder/with-network"
exec "$python" "$folder/with-index" "$@"
"""


# Without a common solution each step is resolved alone, and replaces packages of the step before
# it.
_CLASH = "{}: no versions suit pip.tools, pip.deps and the sources together: {}"


@dataclass(frozen=True)
class Unresolved:
    """An input that could not be resolved: the reason, and the profile and key that need it."""

    problem: Problem
    profile: str
    key: str


@dataclass
class ResolveResult:
    """The new lock, what could not be resolved, and notes for the user.

    With ``problems`` no lock is written. ``left``: revisions of models, which no image depends on.
    """

    lock: Lock
    problems: list[Unresolved] = field(default_factory=list)
    left: list[Unresolved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)  # entries that a server was asked for
    sizes: dict[str, int] = field(default_factory=dict)  # package -> bytes of its largest wheel


def resolve(
    profiles: Sequence[Profile],
    every: Sequence[Profile],
    old: Lock,
    upgrade: Upgrade,
    files: Mapping[str, Path],
) -> ResolveResult:
    """The lock of ``every`` profile, with ``profiles`` brought up to date. An input that fails is
    in ``problems``.

    ``files``: those of this machine, by the key that names them.
    """
    out = ResolveResult(old)
    engine = _engine(out)
    jobs: dict[str, dict[str, tuple[_Question, Future[Any]]]] = {
        "images": {},
        "git": {},
        "models": {},
    }
    for profile in profiles:
        for question in _questions(profile, engine):
            begun = jobs[question.part]
            entry = question.entry
            known = vars(old)[question.part].keys() - old.read.keys()
            asks = entry not in known or upgrade.wants(*question.names)
            if asks and entry not in begun:
                begun[entry] = question, in_background(question.answer)
    images = {**old.images, **_answers(jobs["images"], old, out)}
    python = _packages(profiles, replace(old, images=images), upgrade, engine, files, out)
    parts = {
        "images": images,
        "git": {**old.git, **_answers(jobs["git"], old, out)},
        "python": {**old.python, **python},
        "models": {**old.models, **_answers(jobs["models"], old, out)},
    }
    wanted: dict[str, set[str]] = {part: set() for part in parts}
    for profile in every:
        wanted["python"].add(profile.name)
        for question in _questions(profile, engine):
            wanted[question.part].add(question.entry)
    kept = {}
    for part, entries in parts.items():
        kept[part] = {key: it for key, it in entries.items() if key in wanted[part]}
    entries_read = set().union(*wanted.values()) - out.answered
    read = {key: it for key, it in old.read.items() if key in entries_read}
    out.lock = Lock(**kept, read=read)
    return out


def _engine(out: ResolveResult) -> Engine | None:
    try:
        return connect()
    except EngineError as error:
        out.notes.append(f"no engine: {error.message}")
        return None


# --- images, git and models, each in a thread
# -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """One input to resolve: an entry in a part of the lock, and the profile and key that need it.

    ``names``: of `lock --upgrade`; ``what``: it in messages.
    """

    part: str
    entry: str
    names: tuple[str, ...]
    what: str
    profile: str
    key: str
    ask: Callable[[], Any]

    def answer(self) -> Any:
        started = time.monotonic()
        answer = self.ask()
        progress(f"{self.what}: resolved ({time.monotonic() - started:.1f} s)")
        return answer


def _questions(profile: Profile, engine: Engine | None) -> Iterator[_Question]:
    """All images, refs and revisions of models of a profile."""
    image = str(profile.base.image)
    name = profile.name
    ask_it: Callable[[], Any] = partial(_ask_image, profile, engine)
    yield _Question("images", image, ("base", image), image, name, "base.image", ask_it)
    for git in ask.repositories(profile):
        what = f"{git.name} {git.ref}"
        key = f"sources.{git.source}.origin"
        ask_it = partial(resolve_git, git.url, git.ref)
        yield _Question("git", git.key, (git.name,), what, name, key, ask_it)
    for service, models in ask.models_of(profile).items():
        for model in models:
            entry = model_key(model.repo, model.revision)
            what = f"{model.repo} {model.revision}"
            key = f"services.{service}.model.repo"
            ask_it = partial(_ask_model, model)
            yield _Question("models", entry, (service, model.repo), what, name, key, ask_it)


def _ask_image(profile: Profile, engine: Engine | None) -> ImageLock:
    """The digest from the image's registry; for an image that was built on this machine, its local
    ID.

    A digest under another name (of a mirror, or a registry that it was pushed to) does not count as
    this name's.
    """
    name = str(profile.base.image)
    local = engine.image(name) if engine else None
    if local and _repository(name) not in map(_repository, local.repo_digests):
        progress(f"{name}: only this machine's engine has it")
        return ImageLock(
            name, local.id, {f"linux/{local.architecture}": local.id}, LOCAL, seconds(local.created)
        )
    return resolve_image(profile.base.image)


def _repository(name: str) -> tuple[str, str]:
    image = ImageRef.parse(name)
    registry = image.registry.removeprefix("index.").removesuffix("docker.io")
    return registry, image.path.removeprefix("library/")


def _ask_model(model: ModelRef) -> str:
    return model.revision if COMMIT.fullmatch(model.revision) else commit_of(model)


def _answers(
    jobs: Mapping[str, tuple[_Question, Future[Any]]], old: Lock, out: ResolveResult
) -> JsonDict:
    """The answers. A question that failed is a problem, and the lock keeps its old entry; it is a
    note where that was read elsewhere and only had to be compared.
    """
    answers = {}
    for entry, (question, job) in jobs.items():
        before = vars(old)[question.part].get(entry) if entry in old.read else None
        try:
            answers[entry] = job.result()
        except EnvgenError as error:
            into = out.left if question.part == "models" else out.problems
            if before is None:
                into += [Unresolved(one, question.profile, question.key) for one in error.problems]
            else:
                out.notes.append(
                    f"{question.what} stays as it was read in {old.read[entry]}, and was not "
                    f"compared: {error.message}"
                )
            continue
        out.answered.add(entry)
        first = _value(before)
        now = _value(answers[entry])
        if before is not None and first != now:
            out.notes.append(
                f"{question.what} was read as {first} in {old.read[entry]}; now it is {now}"
            )
    return answers


def _value(entry: ImageLock | GitLock | str | None) -> str:
    """The digest or commit of an entry of the lock."""
    if isinstance(entry, ImageLock):
        return entry.digest
    return entry.commit if isinstance(entry, GitLock) else str(entry)


# --- packages, in the base image
# --------------------------------------------------------------------------------------


def _packages(
    profiles: Sequence[Profile],
    lock: Lock,
    upgrade: Upgrade,
    engine: Engine | None,
    files: Mapping[str, Path],
    out: ResolveResult,
) -> dict[str, Mapping[str, PythonLock]]:
    """One container per base image, interpreter and package indexes, in this thread, which always
    removes it.
    """
    groups: dict[tuple[str, ...], list[Profile]] = {}
    for profile in profiles:
        if _is_open(profile, lock, upgrade, engine):
            base = profile.base
            indexes = repr(profile.pip.index_variables)
            key = (str(base.image), base.python, repr(base.apt), indexes)
            groups.setdefault(key, []).append(profile)
    resolved: dict[str, Mapping[str, PythonLock]] = {}
    for (image, *_), group in groups.items():
        base_lock = lock.images[image]
        names = ", ".join(profile.name for profile in group)
        try:
            image_name = _reference(base_lock, engine)
            assert engine
            progress(f"packages of {names}: resolving in {image}")
            started = time.monotonic()
            kept = {}
            for profile in group:
                before = lock.python.get(profile.name, {})
                kept[profile.name] = keep(before, upgrade, profile)
            reply = _ask_inside(engine, image_name, group, kept, files)
            progress(f"packages of {names}: asked ({time.monotonic() - started:.1f} s)")
        except EnvgenError as error:
            out.problems += [Unresolved(one, group[0].name, "base.image") for one in error.problems]
            continue
        for profile in group:
            python = _answered(profile, base_lock.digest, reply["python"][profile.name], out)
            if python is None:
                continue
            # Another platform's packages stay if they are up to date.
            platform = f"linux/{reply['arch']}"
            before = lock.python.get(profile.name, {})
            same = {name: one for name, one in before.items() if one.asks == python.asks}
            resolved[profile.name] = {**same, platform: python}
    return resolved


def _is_open(profile: Profile, lock: Lock, upgrade: Upgrade, engine: Engine | None) -> bool:
    """Whether a profile's packages are to be resolved: they are not locked for this platform, were
    resolved without the image, which is there now, or are to move.
    """
    part = ask.locked(profile, lock)
    if part.base is None:
        return False  # already a problem
    image = engine.image(str(profile.base.image)) if engine else None
    here = next(iter(part.python.values()), None)
    if profile.base.platform:
        here = part.python.get(profile.base.platform.value)
    elif image:
        here = part.python.get(f"linux/{image.architecture}")
    if here is None or (image and here.assumes):
        return True
    return upgrade.wants_python(profile, lock)


def _answered(
    profile: Profile, base_digest: str, answer: JsonObject, out: ResolveResult
) -> PythonLock | None:
    """The packages of an answer; None, and a problem, where there are none."""
    found = {"sets": {}, "python": "", **answer.get("ok", {})}
    asks = python_asks(profile, base_digest)
    python = bind(PythonLock, {**found, "asks": asks})
    problem = answer.get("failed") or _mismatch(python.sets)
    if problem:
        message = f"the Python packages of profile {profile.name}: {problem}"
        unresolved = Unresolved(Problem(message, hint=_hint(problem, profile)), profile.name, "pip")
        out.problems.append(unresolved)
        return None
    for pins in found["sets"].values():
        for pin in pins:
            if isinstance(pin.get("size"), int):
                out.sizes[str(pin["name"])] = pin["size"]
    if found["clash"]:
        out.notes.append(_CLASH.format(profile.name, found["clash"]))
    for step, why in python.open.items():
        newest = "is not locked, so each build takes the newest versions"
        out.notes.append(f"{profile.name}: {step} {newest}: {why}")
    return python


def _reference(base: ImageLock, engine: Engine | None) -> str:
    """What the engine calls the image of the lock: its tag may have another one by now. LockError
    if the engine does not have it.
    """
    where = f"packages for {base.name} are resolved in that image"
    if engine is None:
        raise LockError(f"{where}, but no Docker Engine answers")
    pinned = f"{base.name.removesuffix(f'@{base.digest}')}@{base.digest}"
    for name in (base.name, pinned):
        local = engine.image(name)
        if local and not local.digests.isdisjoint((base.digest, *base.platforms.values())):
            return name
    raise LockError(
        f"{where} ({base.digest[:19]}), but the engine does not have it",
        hint="`envgen lock --upgrade base`" if base.resolved == LOCAL else f"docker pull {pinned}",
    )


def _ask_inside(
    engine: Engine,
    image: str,
    profiles: Sequence[Profile],
    kept: Mapping[str, Mapping[str, Mapping[str, str]]],
    files: Mapping[str, Path],
) -> JsonDict:
    """Resolve for profiles that share a base ``image``, its Python and the package indexes.

    ``kept``: profile -> set -> package -> version.
    """
    base = profiles[0].base
    pip = profiles[0].pip
    asked = {profile.name: _request(profile, kept[profile.name]) for profile in profiles}
    scripts = ("runtime/lib/with-index", "runtime/lib/with-network", "build/apt-install")
    texts = [(data_dir("docker") / name).read_text("utf-8") for name in scripts]
    mounts = []
    for key, path in files.items():
        mounts.append(ContainerMount(str(path), PLACES[key], read_only=True))
    env = {name: os.environ[name] for name in proxies()}
    start = ["sh", "-c", _START, "sh", base.python, " ".join(base.apt), *texts]
    inside = run.in_image(
        engine,
        image,
        mounts=mounts,
        env={**env, **pip.index_variables},
        user="0:0",
        network="bridge",
    )

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return inside([*start, *argv], stdin, timeout)

    reply = run.ask(execute, base.python, PROGRAM, {"python": asked}, timeout=TIMEOUT)
    if isinstance(reply, run.NoAnswer):
        reason = f"{base.image} has no {base.python}"
        if reply.code != 101:
            reason = last_printed("\n".join(reply.stack), reply.code, 10)
        raise LockError(
            f"packages for {base.image}: {base.python} cannot resolve them there: {reason}",
            hint="needs Python 3.8 or newer, with pip; where it has none: "
            "base.apt: [python3, python3-dev, python3-pip]",
        )
    return reply


def _request(profile: Profile, kept: Mapping[str, Mapping[str, str]]) -> JsonDict:
    return {
        "sets": [vars(one) for one in python_sets(profile)],
        "protect": list(profile.pip.protect),
        "off": [*profile.pip.override, *profile.pip.remove],
        "removed": list(profile.pip.remove),
        "keep": dict(kept),
    }


def _mismatch(sets: Mapping[str, Sequence[Pinned]]) -> str:
    """FlashInfer's packages only work together when all are of one release."""
    for name, pins in sets.items():
        family = {}
        for pin in pins:
            if pin.name.startswith("flashinfer"):
                family[pin.name], _, _ = pin.version.partition("+")
        if len(set(family.values())) > 1:
            listed = ", ".join(map(" ".join, sorted(family.items())))
            return f"{name} would mix releases of FlashInfer: {listed}; name one version for all of them"
    return ""


def _hint(text: str, profile: Profile) -> str:
    if "certificate" in text.lower():
        return "write your company's certificate authority in network.ca_certificates"
    unanswered = re.search(r"\b40[13]\b|[Uu]nauthorized|No matching distribution found", text)
    if profile.pip.index_variables and profile.pip.netrc is None and unanswered:
        return "does the index ask for a login? write it in a netrc file, and that file's path in pip.netrc"
    return ""
