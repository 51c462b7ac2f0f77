"""`envgen build`: check the patches and the lock, then build a profile's image."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from envgen import files
from envgen.app.images import adopt, is_named, keep_before
from envgen.deployment import Deployment
from envgen.engine import buildx
from envgen.engine.buildx import BuildRequest, BuildResult
from envgen.engine.endpoint import require_plugin
from envgen.errors import BuildError, EnvgenError, Problem, RefusedError
from envgen.explain import Circumstances, Explanation
from envgen.explain.read import cause_of
from envgen.files import state_dir
from envgen.lock.ask import python_sets, stale
from envgen.lock.model import InputChange
from envgen.patches.dry_run import dry_run, report_lines, summary
from envgen.profile.model import Mode
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import label_of
from envgen.text import first_of, progress


def request_of(deployment: Deployment, *, no_cache: bool = False) -> BuildRequest:
    """The request for buildx, its files written. RefusedError if a file that the profile names does
    not exist.
    """
    profile = deployment.profile
    own = deployment.require_own_files()
    folder = deployment.workspace.folder
    platform = profile.base.platform
    args = {}
    if deployment.lock:
        # Files in layers have this time anyway; the argument also sets `created` in the image's
        # metadata.
        args["SOURCE_DATE_EPOCH"] = str(deployment.lock.epoch)
    secrets: dict[str, Path | str] = {}
    if profile.build.max_jobs.count is not None:
        secrets["jobs"] = str(profile.build.max_jobs.count)
    for secret, key in (("ca_certificates", "network.ca_certificates"), ("netrc", "pip.netrc")):
        if key in own:
            secrets[secret] = own[key]
    contexts = {}
    if "build.wheelhouse" in own:
        contexts["wheelhouse"] = own["build.wheelhouse"]
    return BuildRequest(
        folder / deployment.rendered.dockerfile,
        folder,
        tags=(profile.image_name,),
        args=args,
        secrets=secrets,
        contexts=contexts,
        platform=platform.value if platform else "",
        labels={INPUTS_LABEL: label_of(deployment.rendered.inputs)},
        no_cache=no_cache,
    )


@dataclass(frozen=True)
class BuildOutcome:
    """How a build ended, by the lock of ``deployment``. ``result`` is None if the image was up to
    date.
    """

    deployment: Deployment
    image_id: str
    result: BuildResult | None = None
    cause: Explanation | None = None  # of a failure
    log: str = ""  # its path in the project
    shown: bool = False  # its output
    changed: tuple[InputChange, ...] = ()  # since the existing image was built


def build(
    deployment: Deployment, *, show: bool, no_cache: bool = False, unlocked: bool = False
) -> BuildOutcome:
    """Try the patches, check the lock, and build the image if it is out of date. ``show``: as in
    ``buildx.build``.
    """
    deployment = deployment.to_build(unlocked=unlocked)
    image_name = deployment.profile.image_name
    if not unlocked and not no_cache:
        deployment = adopt(deployment)
    try_patches(deployment)  # before Docker is asked for anything
    if not unlocked:
        require_lock(deployment)
    deployment.require_name()
    existing = deployment.image
    if existing and is_named(deployment) and deployment.is_current and not no_cache:
        return BuildOutcome(deployment, existing.id)
    changed = tuple(deployment.outdated)
    if lines := first_of([str(one) for one in changed], 12):
        progress(f"{image_name} differs: {'; '.join(lines)}")
    deployment.require_own_files()
    require_plugin("buildx")
    result, cause, log = _run(deployment, request_of(deployment, no_cache=no_cache), show)
    image = deployment.engine.image(image_name) if result.ok else None
    if image and existing and image.id != existing.id:
        keep_before(deployment, existing)
    deployment = deployment.with_cached(image=image)
    if image and existing and image.id == existing.id and not no_cache:
        return BuildOutcome(deployment, image.id, changed=changed)
    return BuildOutcome(deployment, image.id if image else "", result, cause, log, show, changed)


# --- what is checked first
# --------------------------------------------------------------------------------------------


def try_patches(deployment: Deployment) -> None:
    """Try each series on the source that will be built. BuildError if a patch does not fit."""
    for line in deployment.left_out:
        progress(f"note: {line}")
    started = time.monotonic()
    runs = []
    for source in deployment.patched_sources:
        if source.mounted is not None:
            continue
        series = deployment.series[source.name]
        try:
            runs.append(dry_run(source.unpatched(), series))
        except EnvgenError as error:  # it is left to the build
            progress(f"{series.folder} is not tried: {error}")
    bad = []
    for run in runs:
        if not run.ok:
            for line in report_lines(run):
                progress(line)
        bad += [f"{one.path} ({one.state.value})" for one in run.verdicts if not one.ok]
    if bad:
        message = f"patches do not fit, so nothing was built: {', '.join(bad)}"
        raise BuildError(message, hint="`envgen patch check` shows it again")
    if runs:
        progress(f"tried in {time.monotonic() - started:.1f} s: {'; '.join(map(summary, runs))}")


def require_lock(deployment: Deployment) -> None:
    """RefusedError when a production build would differ from the lock, or that is for another
    platform.

    A development build prints what differs.
    """
    profile = deployment.profile
    lock = deployment.lock
    problems = lock_problems(deployment)
    foreign = lock is not None and bool(lock.python) and deployment.platform not in lock.python
    if problems and (foreign or profile.mode is Mode.PRODUCTION):
        raise RefusedError(problems=_unlocked(deployment, problems))
    if lock is None:
        progress(f"note: no envgen.lock; `{profile.lock_command}` makes this build repeatable")
        return
    for problem in problems:
        progress(f"warning: envgen.lock: {problem.message}")


def _unlocked(deployment: Deployment, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """What the lock lacks, and the commands that lock it and build."""
    profile = deployment.profile
    build = deployment.profile.hint("build")
    commands = [profile.lock_command]
    if deployment.base_moved:  # without it, a lock keeps the base that it has
        commands = [f"{profile.lock_command} --upgrade base"]
    if (deployment.root / profile.dockerfile).exists():  # it has the lock's versions, too
        commands.append(profile.render_command)
    hint = f"{' && '.join([*commands, build])}; `{build} --unlocked` builds without a lock"
    what = f"{profile.name} is a {profile.mode.value} profile"
    head = Problem(f"{what}, and the lock lacks some of its inputs:")
    return head, *problems, Problem("nothing was built", hint=hint)


def lock_problems(deployment: Deployment) -> list[Problem]:
    """What a build would need and the lock file lacks."""
    profile = deployment.profile
    lock = deployment.lock
    if lock is None:
        return [Problem("no envgen.lock")]
    problems = [Problem(str(item)) for item in stale(profile, lock, deployment.platform)]
    here = lock.python.get(deployment.platform)
    steps = python_sets(profile) if here is not None and here.assumes else ()
    for step in steps:
        # Resolved without the base image, so nothing of it is known.
        if here is not None and step.name in here.open and not step.needs_metadata:
            problems.append(Problem(f"pip: {step.name} is open: {here.open[step.name]}"))
            break
    if lock.base and deployment.base_moved:
        message = f"base: {lock.base.name} was built locally, and here it {deployment.base_moved}"
        problems.append(
            Problem(
                message,
                hint=f"`{profile.lock_command} --upgrade base` locks the one on this engine",
            )
        )
    return problems


# --- the build itself
# -------------------------------------------------------------------------------------------------


def _run(
    deployment: Deployment, request: BuildRequest, show: bool
) -> tuple[BuildResult, Explanation | None, str]:
    """Run buildx and log all of its output. Returns its result, the cause of a failure, and the
    log's path.
    """
    root = deployment.root
    now = datetime.now()
    # Two builds may start in one second.
    path = state_dir(root, "logs") / f"build-{deployment.profile.name}-{now:%Y%m%dT%H%M%S.%f}.log"
    with files.create(path, within=root) as log:
        say = partial(print, file=log, flush=True)
        say(f"$ {shlex.join(buildx.argv_of('build', *request.words()))}")
        result = buildx.build(request, say, show=show)
        cause = None
        if not result.ok:
            lines = [*result.lines, *result.notes.splitlines()]
            cause = cause_of(lines, Circumstances(True, result.exit_code))
        if cause:
            say(f"{cause.said}: {cause.evidence}")
        say(f"ended with {result.code} after {result.seconds:.1f} s")
    return result, cause, str(path.relative_to(root))
