"""A build of a profile: files, request, whether the image is up to date anyway; the build; two builds compared."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envgen import files
from envgen.app import whose
from envgen.app.lock import demand
from envgen.app.patch_sources import try_patches
from envgen.app.session import Session
from envgen.engine import buildx, host, process
from envgen.engine.buildx import (
    BuildLog,
    BuildRequest,
    BuildResult,
    Secret,
    Step,
    before,
    names_in,
    proxy_arguments,
    stages_in,
)
from envgen.engine.client import Engine, connect
from envgen.engine.compose import docker_program, run_shell
from envgen.engine.endpoint import demand_plugin, find_endpoint
from envgen.engine.host import CREATOR, THROWAWAY, this_process
from envgen.errors import BuildError, LockError, RefusedError, UsageError
from envgen.explain import Cause, cause_of
from envgen.files import state_dir
from envgen.lock.image import Difference, compare
from envgen.lock.model import LOCAL, ProfileLock
from envgen.profile.model import Profile
from envgen.render.environment import CA_VARIABLE, WHEELHOUSE_VARIABLE, compose_environment
from envgen.render.locking import base_image, lock_of
from envgen.render.outputs import IGNORE_FILE, Rendered, prepare, render_profile
from envgen.serve import preflight
from envgen.serve.launch import compose_for
from envgen.text import counted, progress

RENDER_LABEL = "dev.envgen.render"


@dataclass(frozen=True)
class Job:
    """A profile with everything that was rendered for it."""

    profile: Profile
    root: Path
    rendered: Rendered
    lock: ProfileLock | None = None
    target: str = ""  # the stage to stop after; its image has a name of its own

    @property
    def image(self) -> str:
        return f"{self.profile.image_name}-{self.target}" if self.target else self.profile.image_name

    @property
    def folder(self) -> Path:
        """The folder of what is really used: rendered with all layers, unlike the committed files."""
        return state_dir(self.root, "render") / self.profile.name

    @property
    def dockerfile(self) -> Path:
        return self.folder / self.rendered.dockerfile

    @property
    def text(self) -> str:
        """The Dockerfile itself."""
        return self.rendered.files[self.rendered.dockerfile].decode()

    @property
    def steps(self) -> dict[str, str]:
        """What its steps do, by instruction."""
        return names_in(self.text)

    @property
    def record(self) -> Path:
        return state_dir(self.root, "state") / f"build-{self.profile.name}.json"


def job_of(profile: Profile, root: Path, lock: ProfileLock | None = None, target: str = "") -> Job:
    """Render a profile (nothing is written). UsageError for a ``target`` that is not a stage of it."""
    job = Job(profile, root, render_profile(profile, lock, root=root), lock, target)
    stages = stages_in(job.text)
    if target and target not in stages:
        raise UsageError(f"{job.rendered.dockerfile} has no stage {target!r}", hint=f"it has: {', '.join(stages)}")
    return job


@dataclass(frozen=True)
class Options:
    """How this one build is made. ``max_jobs``: compilers at once; None: as the profile says, else the gate decides.

    ``push``: the image goes to the registries of ``tags``, and not into the engine.
    """

    max_jobs: int | None = None
    no_cache: bool = False
    pull: bool = False
    tags: tuple[str, ...] = ()  # names besides the profile's own
    push: bool = False
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    builder: str = buildx.OWN

    @property
    def plain(self) -> bool:
        """Whether an image that is up to date is all that is wanted."""
        return not (self.no_cache or self.pull or self.tags or self.push or self.cache_to)


def request_of(job: Job, options: Options) -> BuildRequest:
    """The request to buildx. Refuses when a file of this machine that it names is not there."""
    profile = job.profile
    paths = compose_environment(profile, job.root)
    if problems := tuple(preflight.files(profile, job.root)):
        error = RefusedError(problems[0].message)
        error.problems = problems
        raise error
    most = options.max_jobs if options.max_jobs is not None else profile.build.max_jobs.count
    secrets = [] if most is None else [Secret("jobs", value=str(most))]
    if ca := paths.get(CA_VARIABLE):
        secrets.append(Secret("ca_certificates", file=Path(ca)))
    wheelhouse = paths.get(WHEELHOUSE_VARIABLE)
    return BuildRequest(
        dockerfile=job.dockerfile,
        context=job.folder,
        tags=options.tags if options.push else (job.image, *options.tags),
        # The layers have this time anyway; as an argument it also reaches the image's own record of its making.
        args={"SOURCE_DATE_EPOCH": str(job.lock.epoch)} if job.lock else {},
        pass_args=proxy_arguments() if profile.network.pass_proxy else (),
        secrets=tuple(secrets),
        contexts={"wheelhouse": Path(wheelhouse)} if wheelhouse else {},
        target=job.target,
        platform=profile.base.platform.value if profile.base.platform else "",
        no_cache=options.no_cache,
        pull=options.pull,
        push=options.push,
        cache_from=options.cache_from,
        cache_to=options.cache_to,
        builder=options.builder,
    )


def buildable(request: BuildRequest, engine: Engine) -> None:
    """RefusedError where the builder is none, or cannot run the platform that is asked for."""
    if request.builder == buildx.OWN and engine.info().product == "Podman":
        raise RefusedError(
            "Podman has no BuildKit, and envgen builds with that: name a builder of buildx in BUILDX_BUILDER",
            hint="docker buildx create --name envgen --driver docker-container; BUILDX_BUILDER=envgen envgen build",
        )
    wanted = request.platform
    if not wanted or (request.builder == buildx.OWN and wanted.endswith(f"/{engine.info().arch}")):
        return
    if wanted not in (found := buildx.platforms(request.builder)):
        emulator = f"docker run --privileged --rm tonistiigi/binfmt --install {wanted.split('/')[1]}"
        raise RefusedError(
            f"the builder {request.builder!r} cannot run {wanted}: it has {', '.join(found) or 'no platforms'}",
            hint=f"`{emulator}` on the engine's machine adds an emulator; or name a builder of that platform in "
            "BUILDX_BUILDER",
        )


def compilers(profile: Profile, engine: Engine | None, max_jobs: int | None = None) -> str:
    """One sentence on what compilers of a build will do."""
    wanted = max_jobs if max_jobs is not None else profile.build.max_jobs.count
    return host.compilers(wanted, engine.info() if engine else None)


# --- the way without BuildKit -----------------------------------------------------------------------------------------


def identity(job: Job, engine: Engine) -> dict[str, str]:
    """What, besides the rendered files, decides whether a build would give the same image again."""
    base = engine.image(str(job.profile.base.image))
    return {
        "digest": job.rendered.digest,
        "image": job.image,
        "base_id": base.id if base else "",
        "wheelhouse": _listing(job),
    }


def up_to_date(job: Job, engine: Engine) -> str:
    """The id of the image if a build would change nothing; else "".

    True when the last successful build had the same inputs and the image that it made is still the one of that name.
    """
    try:
        recorded: Any = json.loads(files.read(job.record, follow=False))
    except (OSError, ValueError):
        return ""
    if not isinstance(recorded, dict) or recorded.get("digest") != job.rendered.digest:
        return ""
    image = engine.image(job.image)
    if image is None or image.id != recorded.get("image_id") or image.labels.get(RENDER_LABEL) != job.rendered.digest:
        return ""
    return image.id if recorded == {**identity(job, engine), "image_id": image.id} else ""


def remember(job: Job, before: dict[str, str], engine: Engine) -> None:
    """Record a successful build. ``before``: the identity when it started; a change meanwhile voids the record."""
    image = engine.image(job.image)
    after = identity(job, engine)
    # A base image that was pulled by the build itself was "" before; the next build then looks once more.
    if image is None or before != after:
        job.record.unlink(missing_ok=True)
        return
    content = json.dumps({**after, "image_id": image.id}, indent=1, sort_keys=True).encode()
    files.write(job.record, content, within=job.root)


def _listing(job: Job) -> str:
    """A digest of names, sizes and times in the wheelhouse: a new wheel there may change the image."""
    wheelhouse = compose_environment(job.profile, job.root).get(WHEELHOUSE_VARIABLE)
    if not wheelhouse:
        return ""
    found = hashlib.sha256()
    for folder, names, plain in os.walk(wheelhouse):
        names.sort()
        for name in sorted(plain):
            path = Path(folder, name)
            try:
                state = path.stat()
            except OSError:
                continue
            found.update(f"{path.relative_to(wheelhouse)}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return found.hexdigest()


# --- the use case -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a build. Without a ``result`` the image was up to date, and BuildKit was not asked."""

    job: Job
    image_id: str
    compilers: str = ""
    result: BuildResult | None = None
    cause: Cause | None = None  # what was behind a failure
    log: str = ""
    pushed: tuple[str, ...] = ()


def build(
    session: Session,
    job: Job,
    *,
    on_step: Callable[[Step], None],
    on_tick: Callable[[], None],
    options: Options,
    unlocked: bool = False,
    take_over: bool = False,
) -> Outcome:
    """Try the patches, hold the lock against the project, and build what is not up to date.

    ``take_over``: what another folder or user has under the profile's name makes way.
    """
    try_patches(job.profile, job.root, job.rendered.digest, job.lock)
    engine = connect()
    if not unlocked:
        demand(job.profile, job.root, engine, job.lock)
    if take_over:
        prepare(job.profile, job.root, job.lock)
        whose.take_over(engine, job.profile, job.root, compose_for(engine, job.profile, job.root, job.folder))
    whose.claim(engine, job.profile, job.root, f"envgen build --profile {job.profile.name} --take-over")
    if options.plain and not job.target and (image_id := up_to_date(job, engine)):
        return Outcome(job, image_id)
    _warn_of_drift(session)
    how = compilers(job.profile, engine, options.max_jobs)
    request = request_of(job, options)
    demand_plugin("buildx")
    buildable(request, engine)
    identical = identity(job, engine)
    prepare(job.profile, job.root, job.lock)
    progress(how)
    kills = oom_kills(engine)
    with BuildLog(state_dir(job.root, "logs"), job.profile.name) as log:
        log.say(f"$ {shlex.join(buildx.argv_of(request))}")
        log.say(how)
        result = buildx.build(request, on_line=log.say, on_step=on_step, on_tick=on_tick)
        cause = unseen_base(job.profile, engine, result, options.builder) or _cause(result, oom_kills(engine) - kills)
        if cause:
            log.say(f"{cause.summary}: {cause.evidence}")
        log.say(f"ended with {result.code} after {result.seconds:.1f} s {result.image_id}")
    if result.ok and options.builder != buildx.OWN and not options.push and (image := engine.image(job.image)):
        result = replace(result, image_id=image.id)  # of what it sent, the builder knows the manifest's digest alone
    if result.ok and not (job.target or options.push):
        remember(job, identical, engine)
    pushed = options.tags if result.ok and options.push else ()
    return Outcome(job, result.image_id, how, result, cause, shown_path(job, log.path), pushed)


def oom_kills(engine: Engine) -> int:
    """How many programs the kernel has killed for memory since it started; 0 where it can't be asked."""
    try:
        text = Path("/proc/vmstat").read_text("ascii") if engine.info().endpoint.startswith("unix://") else ""
    except OSError:
        text = ""
    found = re.search(r"^oom_kill (\d+)$", text, re.M)
    return int(found[1]) if found else 0


def shell_before(job: Job, step: Step, max_jobs: int | None = None) -> int:
    """A shell in what the stage of a failed step had become before that step; the shell's exit code.

    BuildKit keeps no container of a step that failed: what this step itself did is lost, and so are its mounts. The
    steps before it come from the cache. Image and container are removed afterwards.
    """
    text = before(job.text, step)
    if not text:
        raise BuildError(f"{job.rendered.dockerfile} has no step {step.title!r} to open a shell before")
    with files.Scratch("build") as folder:
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text(text, encoding="utf-8")
        request = replace(request_of(job, Options(max_jobs)), dockerfile=dockerfile, tags=(), target=step.stage)
        result = buildx.build(request)
    if not result.ok:
        raise BuildError(f"the stage {step.stage} could not be built up to the failed step: {result.error}")
    progress(f"a shell in stage {step.stage} as it was before the failed step, without the mounts of that step:")
    progress(f"    {step.instruction}")
    progress("leave it with `exit`; container and image are removed then")
    labels = {THROWAWAY: "1", CREATOR: str(this_process())}
    try:
        return run_shell(find_endpoint(), result.image_id, labels)
    finally:
        connect().remove_image(result.image_id)


def unseen_base(profile: Profile, engine: Engine, result: BuildResult, builder: str = buildx.OWN) -> Cause | None:
    """The engine has the base image, and it was looked for in its registry, in vain: another builder does not see it,
    or it is one for another platform."""
    wanted, name = profile.base.platform, str(profile.base.image)
    found = engine.image(name) if "failed to resolve source metadata" in result.error else None
    if found is not None and builder != buildx.OWN:
        return Cause(
            "builder",
            f"the engine has {name}, and the builder {builder!r} (BUILDX_BUILDER) does not see the engine's images",
            result.error.splitlines()[-1],
            f"push {name} to a registry that the builder reaches and name it in base.image; or unset BUILDX_BUILDER",
        )
    if not wanted or found is None or wanted.value.split("/")[1] == found.architecture:
        return None
    return Cause(
        "platform",
        f"the engine has {name} for {found.architecture} alone, base.platform asks for {wanted.value}",
        result.error.splitlines()[-1],
        f"docker pull --platform {wanted.value} {name}; or unset base.platform",
    )


def _cause(result: BuildResult, killed: int) -> Cause | None:
    """``killed``: how many programs the kernel has killed for memory meanwhile."""
    if result.ok:
        return None
    lines = [*result.last_lines]
    if result.failed:
        lines.append(result.failed.error)
    code = result.failed.exit_code if result.failed else None
    lines += result.error.splitlines()
    cause = cause_of(lines, exit_code=code)
    if cause and cause.kind == "killed" and killed > 0:
        memory = f"the kernel's memory killer ended {counted(killed, 'program')} meanwhile (oom_kill in /proc/vmstat)"
        return cause_of(lines, exit_code=code, memory=memory)
    return cause


def _warn_of_drift(session: Session) -> None:
    """What is built has all layers in it; but the committed files should be what the project file says."""
    plain = Session(session.file, session.profile_name)
    profile, root = plain.profile(local=False), plain.loaded(local=False).project.root
    files = render_profile(profile, lock_of(profile, root), root=root).files
    drifted = [
        name
        for name, content in sorted(files.items())
        if name != IGNORE_FILE and (root / name).is_file() and (root / name).read_bytes() != content
    ]
    if drifted:
        progress(f"warning: out of date with the project file: {', '.join(drifted)}: run `envgen render`")


def shown_path(job: Job, path: Path) -> str:
    """A path below the project, as people read it."""
    return str(path.relative_to(job.root)) if path.is_relative_to(job.root) else str(path)


def pull(session: Session) -> tuple[str, str]:
    """Pull with Docker's own program, which knows the user's logins; name and id of the image."""
    profile, root = session.profile(), session.loaded().project.root
    lock = lock_of(profile, root)
    name = base_image(profile.base.image, lock)
    engine = connect()
    if lock is not None and lock.base is not None and lock.base.resolved == LOCAL:
        raise LockError(f"{name} is locked as an image of this machine", hint="envgen lock --upgrade base")
    platform = [f"--platform={profile.base.platform.value}"] if profile.base.platform else []
    done = process.stream(
        [docker_program(), "pull", *platform, name],
        lambda _channel, line: progress(f"  {line.decode(errors='replace')}"),
        env=find_endpoint().environment,
    )
    image = engine.image(name)
    if done.code or image is None:
        reason = "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
        login = f"docker login {profile.base.image.registry}".strip()
        raise LockError(f"{name} could not be pulled: {reason}", hint=f"if it needs a login: {login}")
    return name, image.id


@dataclass(frozen=True)
class Verified:
    """Both images, and in what they differ (in their times, too, where the profile is to be reproducible)."""

    ids: tuple[str, ...]
    seconds: tuple[float, ...]
    found: tuple[Difference, ...]
    same_content: bool


def verify(session: Session, max_jobs: int | None) -> Verified:
    """Build twice and compare. The two images are removed again."""
    profile, root = session.profile(), session.loaded().project.root
    lock = lock_of(profile, root)
    if lock is None:
        raise UsageError("there is no envgen.lock, so no two builds need be alike", hint="`envgen lock`")
    engine = connect()
    demand(profile, root, engine, lock)
    job = job_of(profile, root, lock)
    prepare(profile, root, lock)
    request = request_of(job, Options(max_jobs, no_cache=True))
    names = [f"envgen-verify-{profile.compose_name}:{number}" for number in (1, 2)]
    try:
        results = _twice(job, request, names)
        ids = tuple(result.image_id for result in results)
        found, content = ([], True) if ids[0] == ids[1] else _differences(engine, names, bytewise=profile.reproducible)
    finally:
        for name in names:
            engine.remove_image(name)
    return Verified(ids, tuple(result.seconds for result in results), tuple(found), content)


def _twice(job: Job, request: BuildRequest, names: Sequence[str]) -> list[BuildResult]:
    """Once from the project, once from a copy of what the build reads in another folder."""
    results = []
    with files.Scratch("verify") as folder:
        copy = Path(folder, "context")
        shutil.copytree(job.folder, copy)
        for name, context in zip(names, (job.folder, copy), strict=True):
            progress(f"building {name} from {context}")
            results.append(
                _build(replace(request, tags=(name,), context=context, dockerfile=context / job.rendered.dockerfile))
            )
            progress(f"{name}: {results[-1].image_id} in {results[-1].seconds:.1f} s")
    return results


def _build(request: BuildRequest) -> BuildResult:
    result = buildx.build(request)
    if not result.ok:
        step = result.failed.title if result.failed else "buildx"
        lines = "\n    ".join(result.last_lines[-15:])
        raise BuildError(f"the build failed in {step}:\n    {lines}", hint="`envgen build` says more")
    return result


def _differences(engine: Engine, names: Sequence[str], *, bytewise: bool) -> tuple[list[Difference], bool]:
    """What differs, and whether the content is the same. ``bytewise``: times are differences, too."""
    progress("the image IDs differ: comparing the content")
    with files.Scratch("verify") as folder:
        paths = [Path(folder, f"{number}.tar") for number in (1, 2)]
        for name, path in zip(names, paths, strict=True):
            engine.save_image(name, path)
        found = compare(*paths)
        return found or (compare(*paths, bytewise=True) if bytewise else []), not found
