"""A Dockerfile from a plan, and the files of the folder docker/ that its steps mount."""

from __future__ import annotations

import re
from itertools import count

from envgen.paths import docker_dir
from envgen.render.parts import Pair, Plan
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
    return render("Dockerfile.j2", {"plan": plan, "labels": LABELS_HERE, "next_step": next_step})


def with_labels(text: str, plan: Plan, digest: str) -> str:
    """The finished text: identity labels put in."""
    pairs = (*plan.labels, Pair("dev.envgen.render", digest))
    before, after = text.split(LABELS_HERE)
    return before + render("partials/labels.j2", {"labels": pairs}) + after
