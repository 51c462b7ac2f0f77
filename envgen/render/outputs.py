"""Renders the files of profiles, compares them with those on disk, and writes them."""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envgen import files as file_io
from envgen.binding import digest_of
from envgen.errors import EnvgenError, Problem, ProjectError, RefusedError
from envgen.files import data_dir, state_dir
from envgen.lock.ask import locked
from envgen.lock.model import Lock, ProfileLock, load
from envgen.profile.model import Network, Profile, Project
from envgen.render.compose import compose_files
from envgen.render.environment import WRITTEN
from envgen.render.inputs import inputs_of
from envgen.render.locking import applied, namespace, series_of
from envgen.render.plan import ImagePlan
from envgen.render.quote import Pair, Quoted, docker_pairs, render

if TYPE_CHECKING:
    from envgen.patches.series import Series

BASE_STAGE = "base"  # of a Dockerfile: the base image with Python and pip
RENDER_LABEL = "dev.envgen.render"  # of an image and its containers: the digest of ``Rendered``
FOLDER = "docker"  # of the project: the content of the stage `scripts`
OWN_SOURCES = "envgen/render/outputs.py"  # in the repository of envgen, and nowhere else
IGNORE_FILE = ".dockerignore"
# Replaced by the labels, which contain the digest. No quoted text can contain NUL.
LABELS_HERE = Quoted("\0")
_MOUNT = re.compile(
    r"--mount=from=(?:scripts|index),source=/(\S+?),target=|COPY --from=scripts (?:--chmod=0644 )?/(\S+) "
)
LEFT_OUT = (".git", ".envgen", "__pycache__")
MOST = 20_000
LARGEST = 256 << 20
_PROGRAM = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Rendered:
    """The files of one profile. ``digest`` changes with the inputs of the image, not with settings
    of services.
    """

    files: Mapping[str, bytes]
    dockerfile: str
    digest: str
    context_files: tuple[
        str, ...
    ]  # files of the project that the build reads, besides the Dockerfile
    inputs: Mapping[str, str] = field(default_factory=dict)  # of the image, as in its label


def render_profile(
    profile: Profile,
    lock: ProfileLock | None = None,
    *,
    root: Path | None = None,
    series: Mapping[str, Series] | None = None,
) -> Rendered:
    """All files of ``profile``. ``root``: the project's folder, for files that the build reads.

    ``series``: its patches, where they are read already.
    """
    series = applied(profile, lock, series_of(profile, root) if series is None else series)
    try:
        plan = ImagePlan(profile, lock, series)
        own = files_of(profile, root)
        text = dockerfile(plan)
        programs = used(text, docker_files(plan))
        shared = plan
        shared_text = text
        shared_programs = programs
        if plan.ca or plan.wheelhouse:  # of this machine, so no inputs of an image
            build = replace(profile.build, wheelhouse=None)
            inputs_only = replace(profile, network=Network(), build=build)
            shared = ImagePlan(inputs_only, lock, series)
            shared_text = dockerfile(shared)
            shared_programs = used(shared_text, docker_files(shared))
        read_files = _files(shared, shared_programs, root, own)
        digest = _digest(shared_text, shared, read_files)
        inputs = inputs_of(shared, read_files)
        labels = docker_pairs((*plan.labels, Pair(RENDER_LABEL, digest)))
        key = namespace(profile, lock, series)
        composed = compose_files(profile, key, is_locked=lock is not None)
        files = {**programs, profile.dockerfile: text.replace(LABELS_HERE, labels), **composed}
    except ValueError as error:  # a value that one of the languages cannot carry
        raise ProjectError([Problem(f"profile {profile.name}: {error}")]) from error
    files[IGNORE_FILE] = dockerignore(paths_of(profile))
    read = tuple(sorted({*plan.context_files, *own}))
    encoded = {path: text.encode() for path, text in files.items()}
    return Rendered(encoded, profile.dockerfile, digest, read, inputs)


def dockerfile(plan: ImagePlan) -> str:
    """The text, with ``LABELS_HERE`` in place of the labels."""
    context = {"plan": plan, "profile": plan.profile, "labels": LABELS_HERE}
    return render("Dockerfile.j2", context)


def scripts() -> dict[str, str]:
    """The programs of all Dockerfiles: path in the project -> text. The same for every profile.

    By their names: in a checkout, bytecode and an editor's copies lie beside them.
    """
    top = data_dir("docker")
    texts = {}
    for part in ("build", "runtime"):
        for path in sorted((top / part).rglob("*")):
            if path.is_file() and _PROGRAM.fullmatch(path.name):
                below = path.relative_to(top).as_posix()
                texts[f"{FOLDER}/{below}"] = path.read_text("utf-8")
    return texts


def docker_files(plan: ImagePlan) -> dict[str, str]:
    """The files of docker/ for one profile: the programs, and its own data."""
    return {**scripts(), **{FOLDER + path: text for path, text in sorted(plan.data.items())}}


def used(text: str, files: dict[str, str]) -> dict[str, str]:
    """The ``files`` that the steps of a Dockerfile mount."""
    tops = tuple(f"{FOLDER}/{mounted or copied}/" for mounted, copied in _MOUNT.findall(text))
    return {path: file for path, file in files.items() if f"{path}/".startswith(tops)}


def dockerignore(copied: Iterable[str]) -> str:
    """The .dockerignore: only what the build reads is sent to the engine. ``copied``: see
    ``paths_of``.
    """
    own = [path for path in copied if not path.startswith("patches/")]
    return render("dockerignore.j2", {"copied": own})


def _files(
    plan: ImagePlan, programs: Mapping[str, str], root: Path | None, own: tuple[str, ...]
) -> dict[str, str]:
    """Each file that the build reads -> a digest of its content."""
    files = dict.fromkeys(plan.context_files, "")
    for path in (*files, *own) if root else ():
        assert root is not None
        file = root / path
        with suppress(FileNotFoundError):
            files[path] = hashlib.sha256(file_io.read(file)).hexdigest()
            if path in own and file.stat().st_mode & 0o100:
                files[path] += "+x"
    for path, content in programs.items():
        files[path] = hashlib.sha256(content.encode()).hexdigest()
    return files


def _digest(text: str, plan: ImagePlan, files: Mapping[str, str]) -> str:
    """A digest of the Dockerfile's instructions without labels, the platform, and every file that
    the build reads.
    """
    platform = plan.profile.base.platform
    instructions = without_comments(text.replace(LABELS_HERE, ""))
    named = {
        "instructions": instructions,
        "platform": platform.value if platform else "",
        "files": files,
    }
    return digest_of(2, named)


def without_comments(dockerfile: str) -> str:
    """A Dockerfile without comments and blank lines."""
    lines = []
    for line in dockerfile.splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


# --- files of the project in an image
# -------------------------------------------------------------------------------


def paths_of(profile: Profile) -> tuple[str, ...]:
    """The files and folders of the project that a profile copies."""
    return tuple(sorted(set(profile.dockerfile_extra.sources)))


def files_of(profile: Profile, root: Path | None) -> tuple[str, ...]:
    """Every file in ``paths_of``, relative to the project, without .git, .envgen and Python's
    caches.
    """
    paths = paths_of(profile)
    if paths and root is None:
        message = f"profile {profile.name} copies files of the project; rendering it needs the project's folder"
        raise EnvgenError(message)
    files = []
    size = 0
    for path in paths:
        assert root is not None
        for file in [path] if (root / path).is_file() else _below(root, path):
            if not (root / file).resolve().is_relative_to(root.resolve()):
                raise RefusedError(f"{file} is a link that leaves the project", hint="copy it here")
            size += (root / file).stat().st_size
            files.append(file)
            if len(files) > MOST or size > LARGEST:
                message = f"{path} holds more than {MOST} files or {LARGEST >> 20} MiB"
                raise RefusedError(message, hint="name the part of it that the image needs")
    return tuple(sorted(set(files)))


def _below(root: Path, path: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root / path):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for place in (Path(folder, name) for name in (*folders, *sorted(names))):
            shown = place.relative_to(root).as_posix()
            if place.is_symlink() and place.is_dir():
                raise RefusedError(
                    f"{shown} is a link to a folder, which a build cannot copy", hint="copy it here"
                )
            if place.is_file() and place.suffix != ".pyc":
                yield shown


def render_project(
    project: Project,
    *,
    only: str | None = None,
    lock: Lock | None = None,
    known: Rendered | None = None,
) -> dict[str, bytes]:
    """The files of all profiles (``only``: of one), by path, with one .dockerignore for all.

    ``lock``: in place of the lock file. ``known``: what was rendered already, of ``only``.
    """
    if lock is None and known is None:
        lock = load(project.root)
    wanted: dict[str, bytes] = {}
    copied: set[str] = set()
    for name, profile in project.profiles.items():
        copied.update(paths_of(profile))
        if known is not None and only == name:
            wanted |= known.files
        elif only in (None, name):
            of_profile = locked(profile, lock) if lock else None
            wanted |= render_profile(profile, of_profile, root=project.root).files
    wanted[IGNORE_FILE] = dockerignore(sorted(copied)).encode()
    return wanted


def diff(root: Path, files: Mapping[str, bytes]) -> str:
    """A unified diff from the files below ``root`` to ``files``; "" without drift."""
    parts = []
    for path in sorted(files):
        current = _content(root, path)
        if current == files[path]:
            continue
        old = (current or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)
        new = files[path].decode().splitlines(keepends=True)
        before = "/dev/null" if current is None else f"a/{path}"
        for line in difflib.unified_diff(old, new, before, f"b/{path}"):
            parts.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(parts)


def foreign(root: Path, files: Mapping[str, bytes]) -> list[str]:
    """The paths of ``files`` with a file that `envgen render` did not write, and would overwrite."""
    mark = WRITTEN.encode()
    paths = []
    for path in sorted(files):
        old = _content(root, path)
        if old is not None and old != files[path] and mark not in old:
            paths.append(path)
    return paths


def _content(root: Path, path: str) -> bytes | None:
    target = _target(root, path)
    return file_io.read(target) if target.exists() else None


def write(root: Path, files: Mapping[str, bytes], programs: Container[str] = ()) -> list[str]:
    """Write what differs, each file whole or not at all, and return the paths that were written.

    ``programs``: which of them are executable, besides the scripts in docker/.
    RefusedError, before anything is written, for a link that leads out of ``root``.
    """
    targets = {path: _target(root, path) for path in sorted(files)}
    written = []
    for path, target in targets.items():
        content = files[path]
        is_program = path in programs
        same = target.is_file() and file_io.read(target) == content
        if same and (not is_program or target.stat().st_mode & 0o100):
            continue  # keeps its time stamp, for programs that watch it
        mode = None
        if is_program or (path.startswith("docker/") and content.startswith(b"#!")):
            mode = 0o644
            if target.exists():
                mode = stat.S_IMODE(target.stat().st_mode)
            mode |= 0o111
        file_io.write(target, content, mode=mode, within=root.resolve())
        written.append(path)
    return written


def _target(root: Path, path: str) -> Path:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise RefusedError(f"{path} is not below {root}")
    top = root.resolve()
    target = (root / path).resolve()
    if not target.is_relative_to(top):
        raise RefusedError(f"{path}: a link leads it out of {root}", hint="remove the link")
    if target.exists() and not target.is_file():
        raise RefusedError(f"{path} exists and is not a file", hint="move it away")
    return target


# --- for `build` and `up`
# -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workspace:
    """``folder`` holds the rendered files. ``temporary``: it is one of this process, and goes with
    this value.
    """

    folder: Path
    rendered: Rendered
    temporary: file_io.Scratch | None = None


# Seconds after which a folder of rendered files that no command has asked for is removed; a
# service that `up --stay` watches may run for weeks.
KEPT = 30 * 24 * 3600.0


def lay_out(rendered: Rendered, profile: Profile, root: Path) -> Workspace:
    """Write the rendered files into a folder that their digest names, so that no command changes
    what another one uses.

    Into a temporary folder where the project can't be written: a service must be looked at there,
    too.
    """
    made = _context(rendered, root)
    own = [path for path in made if path not in rendered.files]
    programs = {path for path in own if (root / path).stat().st_mode & 0o100}
    contents = {path: hashlib.sha256(content).hexdigest() for path, content in made.items()}
    name = digest_of(1, {"files": contents, "programs": sorted(programs)})[:16]
    folder = state_dir(root, "render", profile.name, name)
    try:
        file_io.folder(folder, root)
        write(folder, made, programs)
        os.utime(folder)
        _remove_old(folder)
        return Workspace(folder, rendered)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            raise
    temporary = file_io.Scratch("render")
    write(Path(temporary.name), made, programs)
    return Workspace(Path(temporary.name), rendered, temporary)


def _remove_old(folder: Path) -> None:
    """Remove the folders beside ``folder`` that nobody has used for long."""
    for place in folder.parent.iterdir():
        if place.is_dir() and time.time() - place.lstat().st_mtime > KEPT:
            shutil.rmtree(place, ignore_errors=True)


def _context(rendered: Rendered, root: Path) -> dict[str, bytes]:
    """All files of the folder, which is the whole context of the build, with files of the project."""
    made = dict(rendered.files)
    for path in rendered.context_files:
        with suppress(FileNotFoundError):
            made[path] = file_io.read(root / path)
    return made
