"""One profile's files, made from scratch: plan, print, digest."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgen import files as file_io
from envgen.digests import digest_of
from envgen.errors import Problem, ProjectError
from envgen.profile.model import Profile
from envgen.render.compose import compose_files
from envgen.render.dockerfile import LABELS_HERE, docker_files, dockerfile, used, with_labels
from envgen.render.namespace import namespace, series_of
from envgen.render.own import files_of, paths_of
from envgen.render.parts import Plan
from envgen.render.plan import plan

IGNORE_FILE = ".dockerignore"


def assemble(profile: Profile, lock: Any, root: Path | None) -> dict[str, Any]:
    """``files`` (path -> text), ``digest`` and ``context_files`` of a profile, as JSON can carry them."""
    series = series_of(profile, root)
    try:
        made = plan(profile, lock, series)
        own = files_of(profile, root)
        text = dockerfile(made)
        scripts = docker_files(made)
        digest = _digest(text, made, used(text, scripts), root, own)
        files = {
            **scripts,
            profile.dockerfile: with_labels(text, made, digest),
            **compose_files(profile, namespace(profile, lock, series)),
        }
    except ValueError as error:  # a value that one of the languages cannot carry
        raise ProjectError([Problem(f"profile {profile.name}: {error}")]) from error
    named = [*made.context_files, *paths_of(profile)]
    files[IGNORE_FILE] = dockerignore(named)
    _refuse_machine_paths(profile, files)
    read = sorted({*made.context_files, *own})
    return {"files": files, "digest": digest, "context_files": read, "context_paths": named}


def dockerignore(context_files: tuple[str, ...] | list[str]) -> str:
    """Nothing but what the build reads is sent to the engine."""
    lines = ["# Written by `envgen render`: the build reads nothing else of this folder.", "*", "!docker/", "!patches/"]
    lines += [f"!{path}" for path in context_files if not path.startswith("patches/")]
    return "\n".join(lines) + "\n"


def _digest(text: str, made: Plan, scripts: Mapping[str, str], root: Path | None, own: tuple[str, ...]) -> str:
    """Over the Dockerfile's instructions, the platform, and every file that the build reads. Labels don't count."""
    files = dict.fromkeys(made.context_files, "")
    if root is not None:
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # a local encoding file is only the first of several places
                files[path] = hashlib.sha256(file_io.read(root / path)).hexdigest()
        for path in own:
            mode = "+x" if (root / path).stat().st_mode & 0o100 else ""
            files[path] = hashlib.sha256(file_io.read(root / path)).hexdigest() + mode
    files |= {path: hashlib.sha256(content.encode()).hexdigest() for path, content in scripts.items()}
    instructions = without_comments(text.replace(LABELS_HERE, ""))
    return digest_of(2, {"instructions": instructions, "platform": made.platform, "files": files})


def without_comments(dockerfile: str) -> str:
    """The instructions of a Dockerfile."""
    lines = (line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return "\n".join(lines)


def _refuse_machine_paths(profile: Profile, files: Mapping[str, str]) -> None:
    """A defect if a path of one machine got into a file, whatever way it took."""
    paths = [s.origin.checkout for s in profile.sources.values()] + [c.host for c in profile.caches.values()]
    paths += [mount.host for service in profile.services.values() for mount in service.mounts.values()]
    paths += [profile.network.ca_certificates, profile.build.wheelhouse]
    for path in paths:
        if path is None or not path.is_machine_specific or path.path in ("/", "/dev/null"):
            continue
        for name, content in files.items():
            if f":-{path.path}}}" in content:
                raise AssertionError(f"{name} would carry the machine's own path {path.path}")
