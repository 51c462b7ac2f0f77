"""One profile's files, made from scratch: plan, print, digest."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from envgen import files as file_io
from envgen.binding import digest_of
from envgen.errors import Problem, ProjectError
from envgen.files import docker_dir
from envgen.lock.model import ProfileLock
from envgen.profile.model import Profile
from envgen.render.compose import compose_files
from envgen.render.namespace import namespace, series_of
from envgen.render.own import files_of, paths_of
from envgen.render.parts import Pair, Plan
from envgen.render.plan import plan
from envgen.render.quote import Quoted
from envgen.render.templating import render

FOLDER = "docker"  # of the project: what the stage `scripts` is copied from
# Stands for the labels until the digest that they contain is known. No quoted text can contain NUL.
LABELS_HERE = Quoted("\0")
_MOUNT = re.compile(r"--mount=from=scripts,source=/(\S+?),target=")


def scripts() -> dict[str, str]:
    """The programs of all Dockerfiles: path in the project -> text. They are the same for every profile."""
    top = docker_dir()
    paths = [path for part in ("build", "runtime") for path in (top / part).rglob("*")]
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    return {f"{FOLDER}/{path.relative_to(top).as_posix()}": path.read_text("utf-8") for path in sorted(files)}


def docker_files(plan: Plan) -> dict[str, str]:
    """All of docker/ for one profile: the programs, and its own data."""
    return {**scripts(), **{FOLDER + path: text for path, text in sorted(plan.data.items())}}


def used(text: str, files: dict[str, str]) -> dict[str, str]:
    """Those of ``files`` that the steps of a Dockerfile mount."""
    tops = [f"{FOLDER}/{source}" for source in _MOUNT.findall(text)]
    return {path: file for path, file in files.items() if any(path == t or path.startswith(f"{t}/") for t in tops)}


def dockerfile(plan: Plan) -> str:
    """The text, with ``LABELS_HERE`` in place of the labels."""
    next_step = count(1).__next__  # each step of a reproducible build has its own time: docker/build/normalise
    return render(
        "Dockerfile.j2", {"plan": plan, "profile": plan.profile, "labels": LABELS_HERE, "next_step": next_step}
    )


def with_labels(text: str, plan: Plan, digest: str) -> str:
    """The finished text: identity labels put in."""
    pairs = (*plan.labels, Pair("dev.envgen.render", digest))
    before, after = text.split(LABELS_HERE)
    return before + render("partials/labels.j2", {"labels": pairs}) + after


IGNORE_FILE = ".dockerignore"


@dataclass(frozen=True)
class Rendered:
    """The files of one profile. ``digest`` changes with what determines the image, not with how services are run."""

    files: Mapping[str, bytes]
    dockerfile: str
    digest: str
    context_files: tuple[str, ...]  # what the build reads of the project, besides the Dockerfile
    context_paths: tuple[str, ...]  # the same, folders by their name: what .dockerignore lets in


def render_profile(profile: Profile, lock: ProfileLock | None = None, *, root: Path | None = None) -> Rendered:
    """All files of ``profile``. ``root``, the project's folder, is read for patches and local encoding files only."""
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
    named = (*made.context_files, *paths_of(profile))
    files[IGNORE_FILE] = dockerignore(named)
    _refuse_machine_paths(profile, files)
    read = tuple(sorted({*made.context_files, *own}))
    return Rendered({path: text.encode() for path, text in files.items()}, profile.dockerfile, digest, read, named)


def dockerignore(context_files: Sequence[str]) -> str:
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
    return digest_of(
        2,
        {
            "instructions": instructions,
            "platform": platform.value if (platform := made.profile.base.platform) else "",
            "files": files,
        },
    )


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
