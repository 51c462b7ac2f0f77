"""Resolve the inputs that are stale, all at the same time; the rest of the old lock stays as it is.

Packages are resolved inside the base image: with its Python, its packages and its indexes.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import MISSHAPEN, ContainerMount, ExecResult
from envgen.errors import EngineError, EnvgenError, LockError, Problem
from envgen.files import data_dir
from envgen.inside import run
from envgen.lock import ask
from envgen.lock.ask import Upgrade, keep, python_asks, python_sets
from envgen.lock.model import LOCAL, GitLock, ImageLock, Lock, Pinned, PythonLock, model_key
from envgen.lock.servers import COMMIT, commit_of, resolve_image, seconds
from envgen.profile.model import Profile
from envgen.profile.service import ModelRef
from envgen.profile.values import ImageRef
from envgen.text import last_printed

TIMEOUT = 900
# Where a build step finds files of this machine.
CA, NETRC, WHEELHOUSE = "/run/secrets/ca_certificates", "/run/secrets/netrc", "/run/envgen/lib/wheelhouse"
PROGRAM = run.Program("resolve")
# $1 Python, $2 packages, $3 with-index, $4 with-network, $5 apt-install; then the program, which runs as a build step
# would. Where the base image has no Python, the script installs it, as the build's first step will.
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


# Without a common solution each step is resolved alone, and replaces packages of the step before it.
_CLASH = "{}: no versions suit pip.tools, pip.deps and the sources together: {}"


@dataclass(frozen=True)
class Resolved:
    """The result of one container: per profile the packages, or the reason."""

    platform: str
    python: Mapping[str, PythonLock | LockError]
    notes: Sequence[str] = ()


def resolve_packages(
    engine: Engine,
    profiles: Sequence[Profile],
    base_digest: str,
    keep: Mapping[str, Mapping[str, Mapping[str, str]]],
    files: Mapping[str, str],
) -> Resolved:
    """Resolve for profiles that share a base image, its Python and the package indexes.

    ``keep``: profile -> set -> package -> version. ``files``: path in the container -> file or folder of this machine.
    """
    profile = profiles[0]
    request = {"python": {p.name: _python_request(p, keep.get(p.name, {})) for p in profiles}}
    scripts = ("runtime/lib/with-index", "runtime/lib/with-network", "build/apt-install")
    texts = [(data_dir("docker") / name).read_text("utf-8") for name in scripts]
    start = ["sh", "-c", _START, "sh", profile.base.python, " ".join(profile.base.apt), *texts]
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
    env = {n: os.environ[n] for upper in proxies for n in (upper, upper.lower()) if os.environ.get(n)}
    env |= profile.pip.index_variables
    inside = run.in_image(
        engine,
        str(profile.base.image),
        mounts=[ContainerMount(path, target, read_only=True) for target, path in files.items()],
        env=env,
        user="0:0",
        network="bridge",
    )

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return inside([*start, *argv], stdin, timeout)

    reply = run.ask(execute, profile.base.python, PROGRAM, request, timeout=TIMEOUT)
    if isinstance(reply, run.NoAnswer):
        missing = f"{profile.base.image} has no {profile.base.python}"
        reason = missing if reply.code == 101 else last_printed("\n".join(reply.stack), reply.code, 10)
        raise _not_resolved(profile, reason)
    try:
        return Resolved(
            f"linux/{reply['arch']}",
            {p.name: _python_answer(p, base_digest, reply["python"][p.name]) for p in profiles},
            [_CLASH.format(n, why) for n, one in reply["python"].items() if (why := one.get("ok", {}).get("clash"))],
        )
    except MISSHAPEN as problem:
        raise _not_resolved(profile, f"{type(problem).__name__}: {problem}") from None


def _not_resolved(profile: Profile, reason: str) -> LockError:
    return LockError(
        f"packages for {profile.base.image}: {profile.base.python} cannot resolve them there: {reason}",
        hint="needs Python 3.8 or newer, with pip; where it has none: base.apt: [python3, python3-dev, python3-pip]",
    )


def _python_request(profile: Profile, keep: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {
        "sets": [vars(one) for one in python_sets(profile)],
        "protect": list(profile.pip.protect),
        "off": [*profile.pip.override, *profile.pip.remove],
        "removed": list(profile.pip.remove),
        "keep": dict(keep),
    }


def _python_answer(profile: Profile, base_digest: str, answer: Mapping[str, Any]) -> PythonLock | LockError:
    if "failed" in answer:
        return LockError(
            f"the Python packages of profile {profile.name}: {answer['failed']}", hint=_hint(answer["failed"], profile)
        )
    resolved = answer["ok"]
    sets = {
        name: tuple(Pinned(str(pin["name"]), str(pin["version"]), tuple(map(str, pin["hashes"]))) for pin in pins)
        for name, pins in resolved["sets"].items()
    }
    if problem := _mismatch(sets):
        return LockError(f"the Python packages of profile {profile.name}: {problem}")
    return PythonLock(python_asks(profile, base_digest), str(resolved["python"]), sets, resolved["open"])


def _mismatch(sets: Mapping[str, Sequence[Pinned]]) -> str:
    """FlashInfer's packages only work together when all are of one release."""
    for name, pins in sets.items():
        family = {p.name: p.version.partition("+")[0] for p in pins if p.name.startswith("flashinfer")}
        if len(set(family.values())) > 1:
            listed = ", ".join(f"{package} {version}" for package, version in sorted(family.items()))
            return f"{name} would mix releases of FlashInfer: {listed}; name one version for all of them"
    return ""


def _hint(text: str, profile: Profile) -> str:
    if "certificate" in text.lower():
        return "write your company's certificate authority in network.ca_certificates"
    if re.search(r"dns error|failed to lookup address|Name or service not known|Could not resolve host", text):
        return "a host's name was not found: check pip.index, and the network"
    unanswered = re.search(r"\b40[13]\b|[Uu]nauthorized|No matching distribution found", text)
    if profile.pip.index_variables and profile.pip.netrc is None and unanswered:
        return "does the index ask for a login? write it in a netrc file, and that file's path in pip.netrc"
    return ""


Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Tools:
    """What resolves inputs. ``engine`` raises EngineError where there is none."""

    engine: Callable[[], Engine]
    git: Callable[[str, str], GitLock]  # address and ref
    say: Say
    files: Mapping[str, str] = field(default_factory=dict)  # as in resolve_packages


def resolve(
    profiles: Sequence[Profile], every: Sequence[Profile], old: Lock, upgrade: Upgrade, tools: Tools
) -> ResolveResult:
    """The lock of ``every`` profile, with ``profiles`` brought up to date. An input that fails is in ``problems``."""
    out = ResolveResult(old)
    engine = _engine(tools, out)
    questions = _questions(profiles, old, upgrade, tools, engine)
    asked = {kind: _started(each, tools.say) for kind, each in questions.items()}
    images: dict[str, ImageLock] = {**old.images, **_answers(asked["images"], out.problems)}
    python = _packages(profiles, replace(old, images=images), upgrade, tools, engine, out)
    out.lock = _pruned(
        Lock(
            images=images,
            git={**old.git, **_answers(asked["git"], out.problems)},
            python={**old.python, **python},
            models={**old.models, **_answers(asked["models"], out.left)},
        ),
        every,
    )
    return out


# --- images, git and models, each in a thread -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """One input to resolve: its name in messages, and the profile and key that need it."""

    name: str
    profile: str
    key: str
    ask: Callable[[], Any]


_Job = tuple[_Question, Future[Any]]


def _started(questions: Mapping[str, _Question], say: Say) -> dict[str, _Job]:
    def job(name: str, ask_it: Callable[[], Any]) -> Any:
        started = time.monotonic()
        answer = ask_it()
        say(f"{name}: resolved ({time.monotonic() - started:.1f} s)")
        return answer

    return {key: (one, in_background(functools.partial(job, one.name, one.ask))) for key, one in questions.items()}


def _questions(
    profiles: Sequence[Profile], old: Lock, upgrade: Upgrade, tools: Tools, engine: Engine | None
) -> dict[str, dict[str, _Question]]:
    """All images, refs and revisions of models that are stale or to be upgraded."""
    images, git, models = dict[str, _Question](), dict[str, _Question](), dict[str, _Question]()
    every = [one for profile in profiles for one in ask.repositories(profile)]
    owners = {one.key: (p.name, one.source) for p in reversed(profiles) for one in reversed(ask.repositories(p))}
    for one in every:
        if one.key not in git and (one.key not in old.git or upgrade.wants(one.name)):
            owner, source = owners[one.key]
            what, place = f"{one.name} {one.ref}", f"sources.{source}.origin"
            git[one.key] = _Question(what, owner, place, functools.partial(tools.git, one.url, one.ref))
    for profile in profiles:
        name = str(profile.base.image)
        if name not in images and (name not in old.images or upgrade.wants("base", name)):
            images[name] = _Question(
                name, profile.name, "base.image", functools.partial(_ask_image, profile, tools, engine)
            )
        for service, model in ((name, one) for name, found in ask.models_of(profile).items() for one in found):
            key = model_key(model.repo, model.revision)
            if key not in models and (key not in old.models or upgrade.wants(service, model.repo)):
                what, place = f"{model.repo} {model.revision}", f"services.{service}.model.repo"
                models[key] = _Question(what, profile.name, place, functools.partial(_ask_model, model))
    return {"images": images, "git": git, "models": models}


def _ask_image(profile: Profile, tools: Tools, engine: Engine | None) -> ImageLock:
    """The digest from the image's registry; for an image that was built on this machine, its local ID.

    A digest under another name (of a mirror, or a registry that it was pushed to) does not count as this name's.
    """
    name = str(profile.base.image)
    local = engine.image(name) if engine else None
    if local and _repository(name) not in map(_repository, local.repo_digests):
        tools.say(f"{name}: only this machine's engine has it")
        return ImageLock(name, local.id, {f"linux/{local.architecture}": local.id}, LOCAL, seconds(local.created))
    return resolve_image(profile.base.image)


def _repository(name: str) -> tuple[str, str]:
    image = ImageRef.parse(name)
    return image.registry.removeprefix("index.").removesuffix("docker.io"), image.path.removeprefix("library/")


def _ask_model(model: ModelRef) -> str:
    return model.revision if COMMIT.fullmatch(model.revision) else commit_of(model)


def _answers(jobs: Mapping[str, _Job], into: list[Unresolved]) -> dict[str, Any]:
    """The answers. A question that failed goes ``into`` the problems, and the lock keeps its old entry."""
    answers = {}
    for key, (question, job) in jobs.items():
        try:
            answers[key] = job.result()
        except EnvgenError as error:
            into += [Unresolved(one, question.profile, question.key) for one in error.problems]
    return answers


def _engine(tools: Tools, out: ResolveResult) -> Engine | None:
    try:
        return tools.engine()
    except EngineError as error:
        out.notes.append(f"no engine: {error.problems[0].message}")
        return None


# --- packages, in the base image --------------------------------------------------------------------------------------


def _packages(
    profiles: Sequence[Profile], lock: Lock, upgrade: Upgrade, tools: Tools, engine: Engine | None, out: ResolveResult
) -> dict[str, Mapping[str, PythonLock]]:
    """One container per base image, interpreter and package indexes, in this thread, which always removes it."""
    resolved: dict[str, Mapping[str, PythonLock]] = {}
    groups: dict[tuple[str, ...], list[Profile]] = {}
    for profile in profiles:
        mine = ask.locked(profile, lock)
        if mine.base is None:
            continue  # already a problem
        image = engine.image(str(profile.base.image)) if engine else None
        platform = (
            profile.base.platform.value if profile.base.platform else f"linux/{image.architecture}" if image else ""
        )
        if (platform not in mine.python if platform else not mine.python) or upgrade.wants_python(profile, lock):
            base, indexes = profile.base, repr(profile.pip.index_variables)
            groups.setdefault((str(base.image), base.python, repr(base.apt), indexes), []).append(profile)
    for (name, *_), group in groups.items():
        try:
            answers = _ask_inside(lock.images[name], group, lock, upgrade, tools, engine)
        except EngineError as error:
            message = f"packages are resolved in the base image, but {error.problems[0].message}"
            problem = replace(error.problems[0], message=message)
            out.problems.append(Unresolved(problem, group[0].name, "base.image"))
            continue
        except LockError as error:
            out.problems += [Unresolved(one, group[0].name, "base.image") for one in error.problems]
            continue
        out.notes += answers.notes
        for profile_name, answer in answers.python.items():
            if isinstance(answer, LockError):
                out.problems += [Unresolved(one, profile_name, "pip") for one in answer.problems]
                continue
            # Another platform's packages stay if they are up to date.
            before = lock.python.get(profile_name, {}).items()
            others = {p: v for p, v in before if p != answers.platform and v.asks == answer.asks}
            resolved[profile_name] = {**others, answers.platform: answer}
            out.notes += [
                f"{profile_name}: {step} is not locked, so each build takes the newest versions: {why}"
                for step, why in answer.open.items()
            ]
    return resolved


def _ask_inside(
    base: ImageLock, group: list[Profile], lock: Lock, upgrade: Upgrade, tools: Tools, engine: Engine | None
) -> Resolved:
    if engine is None:
        raise LockError(f"packages for {base.name} are resolved in that image, but no Docker Engine answers")
    local = engine.image(base.name)
    if local is None:
        raise LockError(
            f"packages for {base.name} are resolved in that image, but the engine does not have it",
            hint=f"docker pull {base.name}",
        )
    known = {local.id, *(text.rpartition("@")[2] for text in local.repo_digests)}
    if not known.intersection((base.digest, *base.platforms.values())):
        raise LockError(
            f"the engine's {base.name} is not {base.digest[:19]}, which the lock names",
            hint=f"docker pull {base.name}" if base.resolved != LOCAL else "`envgen lock --upgrade base`",
        )
    names = ", ".join(p.name for p in group)
    tools.say(f"packages of {names}: resolving in {base.name}")
    started = time.monotonic()
    kept = {p.name: keep(lock.python.get(p.name, {}), upgrade, p) for p in group}
    resolved = resolve_packages(engine, group, base.digest, kept, tools.files)
    tools.say(f"packages of {names}: asked ({time.monotonic() - started:.1f} s)")
    return resolved


def _pruned(lock: Lock, every: Sequence[Profile]) -> Lock:
    """Without entries that no profile needs any more."""
    names = {p.name for p in every}
    wanted = {
        "images": {str(p.base.image) for p in every},
        "git": {one.key for p in every for one in ask.repositories(p)},
        "python": names,
        "models": {model_key(m.repo, m.revision) for p in every for found in ask.models_of(p).values() for m in found},
    }
    kept = {part: {k: v for k, v in vars(lock)[part].items() if k in keys} for part, keys in wanted.items()}
    return Lock(**kept)
