"""What a render gives: whole files. Comparing them with what is on disk, and writing them."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Container, Iterable, Mapping
from itertools import chain, count
from pathlib import Path, PurePosixPath

from envgen import files as file_io
from envgen.errors import Problem, ProjectError, RefusedError
from envgen.lock.ask import locked
from envgen.lock.model import load
from envgen.profile.model import Project
from envgen.render.assemble import IGNORE_FILE, dockerignore, render_profile
from envgen.render.parts import WRITTEN


def render_project(project: Project, *, only: str | None = None) -> dict[str, bytes]:
    """The files of all profiles, by path; .dockerignore lets in what any of them needs.

    ``only``: the files of this profile. All are rendered even so, for .dockerignore is theirs together.
    """
    lock = load(project.root)
    files: dict[str, bytes] = {}
    owners: dict[str, str] = {}
    context: set[str] = set()
    for profile in project.profiles.values():
        rendered = render_profile(profile, locked(profile, lock) if lock else None, root=project.root)
        context.update(rendered.context_paths)
        for path, content in rendered.files.items():
            if path != IGNORE_FILE and files.setdefault(path, content) != content:
                raise ProjectError(
                    [Problem(f"profiles {owners[path]} and {profile.name} both render {path}, differently", None,
                             "give one of them another `dockerfile`")]
                )  # fmt: skip
            owners.setdefault(path, profile.name)
    if only is not None:
        files = {path: content for path, content in files.items() if owners[path] == only}
    files[IGNORE_FILE] = dockerignore(sorted(context)).encode()
    return files


def diff(root: Path, files: Mapping[str, bytes]) -> str:
    """A unified diff from what is below ``root`` to ``files``; empty when nothing has drifted."""
    parts: list[str] = []
    for path in sorted(files):
        target = root / path
        there = file_io.read(target) if target.is_file() else None
        if there == files[path]:
            continue
        old = (there or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)
        new = files[path].decode().splitlines(keepends=True)
        before = "/dev/null" if there is None else f"a/{path}"
        for line in difflib.unified_diff(old, new, before, f"b/{path}"):
            parts.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(parts)


def foreign(root: Path, files: Mapping[str, bytes]) -> list[str]:
    """The paths of ``files`` where a file is that `envgen render` did not write: it would be overwritten."""
    found = []
    for path, content in sorted(files.items()):
        target = root / path
        if not target.is_file():
            continue
        there = file_io.read(target)
        if there != content and WRITTEN.encode() not in there:
            found.append(path)
    return found


def keep_originals(root: Path, paths: Iterable[str]) -> list[str]:
    """Copy each file to its name with ``.orig`` (numbered where that is taken) and return the names of the copies."""
    kept = []
    for path in paths:
        content = file_io.read(root / path)
        copy = next(
            name
            for name in chain([f"{path}.orig"], (f"{path}.orig.{n}" for n in count(1)))
            if not (root / name).exists() or file_io.read(root / name) == content
        )
        write(root, {copy: content})
        kept.append(copy)
    return kept


def write(root: Path, files: Mapping[str, bytes], programs: Container[str] = ()) -> list[str]:
    """Write what differs, each file whole or not at all, and return the paths that were written.

    ``programs``: which of them are executable, besides the scripts in docker/.
    A link on the way that leads out of ``root`` is refused before anything is written.
    """
    targets = {path: _target(root, path) for path in sorted(files)}
    written = []
    for path, target in targets.items():
        executable = path in programs or (path.startswith("docker/") and files[path].startswith(b"#!"))
        if (
            target.is_file()
            and file_io.read(target) == files[path]
            and (path not in programs or target.stat().st_mode & 0o100)
        ):
            continue  # untouched, so its time stamp and programs that watch it see no change
        mode = (stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644) | 0o111 if executable else None
        file_io.write(target, files[path], mode=mode, within=root.resolve())
        written.append(path)
    return written


def _target(root: Path, path: str) -> Path:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise RefusedError(f"refusing to write {path}: it is not below {root}")
    top = root.resolve()
    target = (root / path).resolve()
    if not target.is_relative_to(top):
        raise RefusedError(f"refusing to write {path}: a link leads it out of {root}", hint="remove the link")
    if target.exists() and not target.is_file():
        raise RefusedError(f"refusing to write {path}: something else than a file is there")
    return target
