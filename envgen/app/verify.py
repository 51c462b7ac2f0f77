"""`envgen verify`: build twice and compare."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen import files
from envgen.app.build import request_of, require_lock
from envgen.app.session import Session
from envgen.engine import buildx
from envgen.engine.buildx import BuildRequest, BuildResult
from envgen.errors import BuildError, UsageError
from envgen.lock.image import Difference, differences
from envgen.text import progress


@dataclass(frozen=True)
class Verified:
    """The IDs of two images, the seconds that each took, and the differences in their content."""

    ids: tuple[str, ...]
    seconds: tuple[float, ...]
    found: Sequence[Difference]


def verify(session: Session) -> Verified:
    """Build without cache from two folders, and compare. Both images are removed afterwards."""
    deployment = session.deployment().to_build()
    engine = deployment.engine
    if deployment.lock is None:
        raise UsageError(
            "without an envgen.lock, two builds may differ", hint=deployment.profile.lock_command
        )
    require_lock(deployment)
    names = [f"envgen-verify-{deployment.profile.compose_name}:{number}" for number in (1, 2)]
    try:
        results = _twice(request_of(deployment, no_cache=True), names)
        ids = tuple(image.id for name in names if (image := engine.image(name)))
        if ids[0] != ids[1]:
            progress("the image IDs differ, as timestamps do: comparing the content")
        different = [] if ids[0] == ids[1] else differences(engine, *names)
    finally:
        for name in names:
            engine.remove_image(name)
    return Verified(ids, tuple(result.seconds for result in results), different)


def _twice(request: BuildRequest, names: Sequence[str]) -> list[BuildResult]:
    """Build from the project's folder, then from a copy of it elsewhere."""
    results = []
    with files.Scratch("verify") as folder:
        copy = Path(folder, "context")
        shutil.copytree(request.context, copy)
        for name, context in zip(names, (request.context, copy), strict=True):
            progress(f"building {name} from {context}")
            dockerfile = context / request.dockerfile.relative_to(request.context)
            result = buildx.build(
                replace(request, tags=(name,), context=context, dockerfile=dockerfile)
            )
            if not result.ok:
                lines = "\n    ".join(result.lines[-15:])
                message = f"the build failed in {result.step or 'buildx'}:\n    {lines}"
                raise BuildError(message, hint="`envgen build` says more")
            progress(f"{name}: built in {result.seconds:.1f} s")
            results.append(result)
    return results
