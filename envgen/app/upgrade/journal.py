"""What an upgrade leaves in the project's state: a trial under way, and files that are about to be
written together.

A journal is written whole before the first of its files. Whatever ends the command after that, the
next one that reads the project writes the rest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from envgen import files
from envgen.binding import JsonObject, ShapeError, bind
from envgen.errors import RefusedError, UsageError
from envgen.files import state_dir
from envgen.lock.model import FILE_NAME as LOCK_FILE
from envgen.profile.load import find
from envgen.profile.model import Project
from envgen.render import outputs

FOLDER = "candidate"
JOURNAL = "keep.json"
TRIAL = "trial.json"
FILE, LOCK = "envgen.yaml", "envgen.lock"  # of the candidate


@dataclass(frozen=True)
class Pending:
    """A trial under way: its command line, and what ran before it. ``of``: the state of the project
    that it is of; ``rows``: what was measured of what ran, by service.
    """

    command: str
    of: str
    services: Mapping[str, str]  # service -> the variant that ran; "-": nothing ran
    rows: Mapping[str, JsonObject] = field(default_factory=dict)


def folder_of(root: Path, profile: str) -> Path:
    """The folder of a profile's candidate."""
    return state_dir(root, FOLDER, profile)


def pending(root: Path, profile: str) -> Pending | None:
    """The trial that is under way, or was broken off."""
    try:
        document = json.loads(files.read(folder_of(root, profile) / TRIAL))
        return bind(Pending, document)
    except (OSError, ValueError, TypeError, ShapeError):
        return None


def abandoned(root: Path, profile: str) -> bool:
    """Whether a trial was broken off: it is recorded, and no process goes on with it."""
    if pending(root, profile) is None:
        return False
    try:
        with alone(root, profile):
            return True
    except RefusedError:
        return False


def alone(root: Path, profile: str) -> AbstractContextManager[None]:
    """One trial of a profile at a time. RefusedError beside another one."""

    def busy() -> None:
        raise RefusedError(f"another envgen is trying a candidate of profile {profile}")

    return files.locked(state_dir(root, FOLDER) / f"{profile}.lock", within=root, on_wait=busy)


def state_of(project: Project) -> str:
    """A digest of the project file and the lock."""
    paths = (project.file, project.root / LOCK_FILE)
    contents = [files.read(path) for path in paths if path.is_file()]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()


def save(root: Path, profile: str, trial: Pending, text: str, lock: str) -> None:
    """Record a trial before the first server is stopped for it, with its project file and lock."""
    content = json.dumps(asdict(trial))
    for name, value in ((FILE, text), (LOCK, lock), (TRIAL, content)):
        files.write(folder_of(root, profile) / name, value.encode(), within=root)


def forget(root: Path, profile: str) -> None:
    """Remove the candidate's files: the trial is over."""
    (folder_of(root, profile) / TRIAL).unlink(missing_ok=True)
    shutil.rmtree(folder_of(root, profile), ignore_errors=True)


def write_together(root: Path, profile: str, texts: Mapping[str, str]) -> None:
    """Write files of the project, path -> text: all of them, whatever ends this process; none of
    them, with OSError, where the disk is full.
    """
    path = folder_of(root, profile) / JOURNAL
    before = {name: files.read(root / name) for name in texts}
    files.write(path, json.dumps(dict(texts)).encode(), within=root)
    try:
        _finish(root, path)
    except OSError:
        outputs.write(root, before)
        path.unlink()
        raise


def finish(file: Path | None) -> None:
    """Write what an interrupted command had still to write of the project of ``file``."""
    try:
        root = (file or find(Path.cwd())).absolute().parent
    except UsageError:
        return  # the caller says so
    for path in root.glob(f"{files.STATE}/{FOLDER}/*/{JOURNAL}"):
        _finish(root, path)


def _finish(root: Path, path: Path) -> None:
    """Write the files of a journal, which may have come with a stranger's project."""
    refused = RefusedError(f"{path} is not what envgen writes", hint=f"rm {path}")
    try:
        texts: dict[str, str] = json.loads(files.read(path, follow=False))
        contents = {name: text.encode() for name, text in texts.items()}
    except (ValueError, AttributeError):
        raise refused from None
    if any(name.startswith(".") and name != outputs.IGNORE_FILE for name in contents):
        raise refused  # .git/config runs programs
    outputs.write(root, contents)
    path.with_name(TRIAL).unlink(missing_ok=True)  # what it tried is kept
    path.unlink(missing_ok=True)
