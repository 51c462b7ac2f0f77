"""Two builds without cache, from two folders, and what differs between the images."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen import files
from envgen.app.build import Job, Options, job_of, request_of
from envgen.app.lock import demand
from envgen.app.session import Session
from envgen.engine import buildx
from envgen.engine.buildx import BuildRequest, BuildResult
from envgen.engine.client import Engine, connect
from envgen.errors import BuildError, UsageError
from envgen.lock.image import Difference, compare, same_content
from envgen.render.locking import lock_of
from envgen.render.outputs import prepare
from envgen.text import progress


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
        found = same_content(*paths)
        return (found or compare(*paths) if bytewise else found), not found
