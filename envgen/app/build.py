"""Build a profile's image; build it twice and compare."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen import files
from envgen.app.lock import require_lock
from envgen.app.patch_sources import try_patches
from envgen.app.session import Session
from envgen.deployment import Deployment, missing_files
from envgen.engine import buildx, host, process
from envgen.engine.buildx import (
    BuildLog,
    BuildRequest,
    BuildResult,
    BuildStep,
    Options,
    names_in,
    proxy_arguments,
    stages_in,
)
from envgen.engine.client import Engine, connect
from envgen.engine.compose import docker_program
from envgen.engine.endpoint import find_endpoint, require_plugin
from envgen.errors import BuildError, LockError, RefusedError, UsageError, named
from envgen.explain import Circumstances, Explanation, cause_of
from envgen.files import state_dir
from envgen.lock.image import Difference, compare
from envgen.lock.model import LOCAL, InputChange
from envgen.lock.servers import registry_error
from envgen.render.environment import CA_VARIABLE, NETRC_VARIABLE, WHEELHOUSE_VARIABLE, compose_environment
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import label_of
from envgen.render.locking import base_image, lock_of
from envgen.render.outputs import RENDER_LABEL
from envgen.text import first_of, progress


@dataclass(frozen=True)
class Job:
    """One build. ``deployment`` has the lock that the build follows."""

    deployment: Deployment
    target: str = ""  # the stage to stop after; its image has a name of its own

    @property
    def image(self) -> str:
        return (
            f"{self.deployment.profile.image_name}-{self.target}" if self.target else self.deployment.profile.image_name
        )

    @property
    def folder(self) -> Path:
        """The folder of the files that are used: rendered with all layers, unlike the committed ones."""
        return state_dir(self.deployment.root, "render") / self.deployment.profile.name

    def placed(self, request: BuildRequest) -> BuildRequest:
        """``request`` with the files written; another folder, where another command uses this one."""
        folder = self.deployment.workspace.folder
        return replace(request, dockerfile=folder / self.deployment.rendered.dockerfile, context=folder)

    @property
    def text(self) -> str:
        """The Dockerfile itself."""
        return self.deployment.rendered.files[self.deployment.rendered.dockerfile].decode()

    @property
    def steps(self) -> dict[str, str]:
        """What each step does, by its instruction."""
        return names_in(self.text)

    def compilers(self, engine: Engine | None, options: Options) -> str:
        """One sentence about how many compilers will run."""
        return host.compilers(self.max_jobs(options), engine.info() if engine else None)

    def max_jobs(self, options: Options) -> int | None:
        return self.deployment.profile.build.max_jobs.count if options.max_jobs is None else options.max_jobs

    def shown(self, path: Path) -> str:
        """``path``, relative to the project where it is inside."""
        root = self.deployment.root
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def job_of(deployment: Deployment, target: str = "", *, unlocked: bool = False) -> Job:
    """Render the build in memory. UsageError if ``target`` is not a stage of the Dockerfile."""
    job = Job(deployment.to_build(unlocked=unlocked), target)
    stages = stages_in(job.text)
    if target and target not in stages:
        raise UsageError(
            f"{job.deployment.rendered.dockerfile} has no stage {target!r}", hint=f"it has: {', '.join(stages)}"
        )
    return job


def request_of(job: Job, options: Options) -> BuildRequest:
    """The request for buildx. RefusedError if a file that the profile names does not exist."""
    profile = job.deployment.profile
    paths = compose_environment(profile, job.deployment.root)
    if problems := tuple(missing_files(profile, job.deployment.root)):
        raise RefusedError(problems=problems)
    most = job.max_jobs(options)
    secrets: dict[str, Path | str] = {} if most is None else {"jobs": str(most)}
    if ca := paths.get(CA_VARIABLE):
        secrets["ca_certificates"] = Path(ca)
    if logins := paths.get(NETRC_VARIABLE):
        secrets["netrc"] = Path(logins)
    wheelhouse = paths.get(WHEELHOUSE_VARIABLE)
    return BuildRequest(
        job.folder / job.deployment.rendered.dockerfile,
        job.folder,
        options,
        tags=options.tags if options.push else (job.image, *options.tags),
        # Files in layers have this time anyway; the argument also sets `created` in the image's metadata.
        args={"SOURCE_DATE_EPOCH": str(job.deployment.lock.epoch)} if job.deployment.lock else {},
        pass_args=proxy_arguments(),
        secrets=secrets,
        contexts={"wheelhouse": Path(wheelhouse)} if wheelhouse else {},
        target=job.target,
        platform=profile.base.platform.value if profile.base.platform else "",
        labels={INPUTS_LABEL: label_of(job.deployment.rendered.inputs)} if not job.target else {},
    )


def require_builder(builder: str, engine: Engine) -> None:
    """RefusedError if the engine has no BuildKit and no other builder is named."""
    if builder == buildx.OWN and engine.info().product == "Podman":
        raise RefusedError(
            "Podman has no BuildKit, and envgen builds with that: name a builder of buildx in BUILDX_BUILDER",
            hint="docker buildx create --name envgen --driver docker-container; BUILDX_BUILDER=envgen envgen build",
        )


def up_to_date(job: Job, options: Options, engine: Engine) -> str:
    """The image's ID if a build would change nothing; "" if only BuildKit can tell.

    A label says which files the image was built from. They do not identify an unlocked base image: the image must have
    its layers, and its variables and labels except those that a build sets. A wheelhouse is left to BuildKit.
    """
    known = options.plain and not job.target and not job.deployment.profile.build.wheelhouse
    image = engine.image(job.image) if known else None
    if image is None or image.labels.get(RENDER_LABEL) != job.deployment.rendered.digest:
        return ""
    base = (
        None
        if job.deployment.lock and job.deployment.lock.base
        else engine.image(str(job.deployment.profile.base.image))
    )
    if base is not None:
        changed = (base.env.items() ^ image.env.items()) | (base.labels.items() ^ image.labels.items())
        if image.layers[: len(base.layers)] != base.layers or any(
            name != INPUTS_LABEL and f" {name}=" not in job.text for name, _ in changed
        ):
            return ""
    return image.id


@dataclass(frozen=True)
class BuildOutcome:
    """How a build ended. ``result`` is None if the image was up to date."""

    job: Job
    image_id: str
    compilers: str = ""
    result: BuildResult | None = None
    cause: Explanation | None = None  # of a failure
    log: str = ""
    pushed: tuple[str, ...] = ()
    changed: tuple[InputChange, ...] = ()  # since the existing image was built


def build(
    job: Job,
    *,
    on_step: Callable[[BuildStep], None],
    on_tick: Callable[[], None],
    options: Options,
    unlocked: bool = False,
) -> BuildOutcome:
    """Try the patches, check the lock, and build the image unless it is up to date."""
    deployment = job.deployment
    try_patches(deployment)  # before Docker is asked for anything
    if not unlocked:
        require_lock(deployment)
    deployment.require_name()
    if image_id := up_to_date(job, options, deployment.engine):
        return BuildOutcome(job, image_id)
    changed = _changed(job)
    request = request_of(job, options)
    require_plugin("buildx")
    require_builder(options.builder, deployment.engine)
    before = deployment.engine.image(job.image)
    how = job.compilers(deployment.engine, options)
    progress(how)
    result, cause, log = _run(job, request, how, on_step, on_tick)
    if (
        result.ok
        and options.builder != buildx.OWN
        and not options.push
        and (image := deployment.engine.image(job.image))
    ):
        result = replace(result, image_id=image.id)  # another builder reports only the manifest's digest
    if options.plain and before and before.id == result.image_id:
        return BuildOutcome(job, before.id, changed=changed)
    pushed = options.tags if result.ok and options.push else ()
    return BuildOutcome(job, result.image_id, how, result, cause, log, pushed, changed)


def _changed(job: Job) -> tuple[InputChange, ...]:
    """Print and return what has changed since the existing image was built."""
    changed = () if job.target else tuple(job.deployment.outdated)
    if lines := first_of([str(one) for one in changed], 12):
        progress(f"{job.image} is older: {'; '.join(lines)}")
    return changed


def _run(
    job: Job, request: BuildRequest, how: str, on_step: Callable[[BuildStep], None], on_tick: Callable[[], None]
) -> tuple[BuildResult, Explanation | None, str]:
    """Run buildx and log all of its output. Returns its result, the cause of a failure, and the log's path."""
    request = job.placed(request)
    with BuildLog(state_dir(job.deployment.root, "logs"), job.deployment.profile.name) as log:
        log.say(f"$ {shlex.join(buildx.argv_of(request))}")
        log.say(how)
        result = buildx.build(request, on_line=log.say, on_step=on_step, on_tick=on_tick)
        cause = None if result.ok else _cause(result)
        if cause:
            log.say(f"{cause.cause}: {cause.evidence}")
        log.say(f"ended with {result.code} after {result.seconds:.1f} s {result.image_id}")
    return result, cause, job.shown(log.path)


def _cause(result: BuildResult) -> Explanation | None:
    failed = result.failed
    lines = [*result.last_lines, *([failed.error] if failed else []), *result.error.splitlines()]
    return cause_of(lines, Circumstances(True, failed.exit_code if failed else None))


def pull(session: Session) -> tuple[str, str]:
    """Pull the base image with the docker CLI, which has the user's logins. Returns the image's name and ID."""
    profile, root = session.profile(), session.loaded().project.root
    lock = lock_of(profile, root)
    name = base_image(profile.base.image, lock)
    engine = connect()
    if lock is not None and lock.base is not None and lock.base.resolved == LOCAL:
        raise LockError(f"{name} is locked as an image of this machine", hint=f"{profile.lock_command} --upgrade base")
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
        hint = f"if it needs a login: {login}"
        raise named(f"{name} could not be pulled", registry_error(reason, profile.base.image, hint=hint))
    return name, image.id


# --- two builds, compared ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verified:
    """The IDs of two images, the seconds that each took, and the differences in their content."""

    ids: tuple[str, ...]
    seconds: tuple[float, ...]
    found: Sequence[Difference]


def verify(session: Session) -> Verified:
    """Build without cache from two folders, and compare. Both images are removed afterwards."""
    job = job_of(session.deployment())
    deployment, engine = job.deployment, job.deployment.engine
    if deployment.lock is None:
        raise UsageError("without an envgen.lock, two builds may differ", hint=deployment.profile.lock_command)
    require_lock(deployment)
    names = [f"envgen-verify-{deployment.profile.compose_name}:{number}" for number in (1, 2)]
    try:
        results = _twice(job, job.placed(request_of(job, Options(no_cache=True))), names)
        ids = tuple(result.image_id for result in results)
        found = [] if ids[0] == ids[1] else _differences(engine, names)
    finally:
        for name in names:
            engine.remove_image(name)
    return Verified(ids, tuple(result.seconds for result in results), found)


def _twice(job: Job, request: BuildRequest, names: Sequence[str]) -> list[BuildResult]:
    """Build from the project's folder, then from a copy of it elsewhere."""
    results = []
    with files.Scratch("verify") as folder:
        copy = Path(folder, "context")
        shutil.copytree(request.context, copy)
        for name, context in zip(names, (request.context, copy), strict=True):
            progress(f"building {name} from {context}")
            dockerfile = context / job.deployment.rendered.dockerfile
            result = buildx.build(replace(request, tags=(name,), context=context, dockerfile=dockerfile))
            if not result.ok:
                step = result.failed.title if result.failed else "buildx"
                lines = "\n    ".join(result.last_lines[-15:])
                raise BuildError(f"the build failed in {step}:\n    {lines}", hint="`envgen build` says more")
            progress(f"{name}: {result.image_id} in {result.seconds:.1f} s")
            results.append(result)
    return results


def _differences(engine: Engine, names: Sequence[str]) -> Sequence[Difference]:
    progress("the image IDs differ, as timestamps do: comparing the content")
    with files.Scratch("verify") as folder:
        paths = [Path(folder, f"{number}.tar") for number in (1, 2)]
        for name, path in zip(names, paths, strict=True):
            engine.save_image(name, path)
        return compare(*paths)
