"""Files: one bounded read, one atomic write. Neither waits for a FIFO, reads a device, or follows a link out of a root.

Everything that envgen reads may have been put there by somebody else (a cloned project, a container that mounts a
checkout), and everything that it writes may be interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TextIO

from envgen.errors import RefusedError, UsageError

LARGEST = 64 << 20  # of a file that is read whole
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotAFile(OSError):
    """A path that should be a regular file and is a FIFO, a device, a folder, or a link where none may be."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


def trouble(error: OSError) -> RefusedError:
    """What the file system said, as the user's error: no space, no permission, a folder that is gone."""
    if error.filename is None and not _here():
        return RefusedError("the current folder was removed", hint="cd to another one")
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    reason = (error.strerror or type(error).__name__).lower()
    hint = _HINTS.get(error.errno or 0, "")
    return RefusedError(f"{where}: {reason}" if where else f"the file system refused: {reason}", hint=hint)


_HINTS = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "free some space: your quota is used up",
    errno.EROFS: "the file system is mounted read-only: work in a copy elsewhere",
    errno.EACCES: "check who owns it",
    errno.EPERM: "check who owns it",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


def _here() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def read(path: Path, *, limit: int = LARGEST, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Anything else is an ``OSError``, at once.

    ``follow=False`` refuses a link as the last part of ``path`` too.
    """
    with opened(path, follow=follow) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 10} KiB", str(path))
    return content


@contextlib.contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """A regular file for reading; an ``OSError``, at once, for anything else."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink() and not follow:
            raise NotAFile(path, "is a link") from None
        if error.errno == errno.ENXIO:  # a socket
            raise NotAFile(path, "is not a regular file") from None
        raise
    with _regular(descriptor, path) as file:
        yield file


def _regular(descriptor: int, path: Path) -> BinaryIO:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
        raise NotAFile(path, what)
    return os.fdopen(descriptor, "rb")


def write(
    path: Path, content: bytes, *, mode: int | None = None, within: Path | None = None, new: bool = False
) -> None:
    """Write a file whole or not at all: a temporary file beside it, on disk before it takes the name.

    A file that is there keeps its mode, unless ``mode`` names one. A link at ``path`` is replaced, never followed.
    With ``within`` (a folder above ``path``) missing folders are made, and a link between the two is refused.
    ``new``: FileExistsError where anything has that name already.
    """
    try:
        with folder(path.parent, within) as directory:
            _write(directory, path.name, content, mode, new)
    except OSError as error:
        if not isinstance(error.filename, str) or error.filename != str(path):
            error.filename, error.filename2 = str(path), None
        raise


def _write(directory: int, name: str, content: bytes, mode: int | None, new: bool) -> None:
    temporary = f".envgen-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o644 if mode is None else mode, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as out:
            before = _mode_of(name, directory) if mode is None else mode
            if before is not None:
                os.fchmod(out.fileno(), before)
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if new:
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            temporary = ""
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)


def create(path: Path, *, within: Path) -> TextIO:
    """A new text file to write to line by line. FileExistsError where anything has that name already."""
    with folder(path.parent, within) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o644, dir_fd=directory)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")


def inside(path: Path, root: Path) -> Path:
    """``path`` with its links resolved, refused where they lead out of ``root``: what a project may let us write."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(Path(os.path.realpath(root))):
        raise RefusedError(f"refusing to write {path}: a link leads it out of {root}", hint=f"rm {path}")
    return target


def state_dir(root: Path, *parts: str) -> Path:
    """``<project>/.envgen``: logs, what builds really use, and build state. Git-ignored; safe to delete.

    A cloned project may bring links of that name: they are refused.
    """
    path = root
    for part in (".envgen", *parts):
        path = path / part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            what = "a link" if path.is_symlink() else "not a folder"
            raise RefusedError(f"{path} is {what}, where envgen keeps its own files", hint=f"rm {path}")
    return path


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """``~/.cache/envgen``, or below XDG_CACHE_HOME, which counts only as an absolute path."""
    environ = os.environ if environ is None else environ
    given = environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        return Path(given, "envgen")
    try:
        home = Path(environ.get("HOME") or "~").expanduser()
    except RuntimeError:
        raise UsageError("there is no home folder for envgen's cache", hint="set HOME or XDG_CACHE_HOME") from None
    return home / ".cache" / "envgen"


def is_ours(path: Path, *, root: bool = False) -> bool:
    """Whether a path belongs to the user, or under sudo to the user who called sudo: git's own rule.

    ``root``: what belongs to root will do as well.
    """
    owner = path.lstat().st_uid
    called = os.environ.get("SUDO_UID", "")
    sudo = os.geteuid() == 0 and called.isdecimal() and owner == int(called)
    return owner == os.geteuid() or sudo or (root and owner == 0)


def _mode_of(name: str, directory: int) -> int | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None


@contextlib.contextmanager
def folder(path: Path, within: Path | None = None, *, create: bool = True) -> Iterator[int]:
    """A descriptor of a folder. Below ``within`` no link is followed, and with ``create`` missing folders are made."""
    if within is None:
        descriptor = os.open(path, _DIRECTORY)
    else:
        descriptor = os.open(within, _DIRECTORY)
        at = within
        try:
            for part in path.relative_to(within).parts:
                if part == "..":
                    raise RefusedError(f"{path} leads out of {within}")
                at = at / part
                inner = _enter(descriptor, part, at, create)
                os.close(descriptor)
                descriptor = inner
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(directory: int, part: str, at: Path, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=directory)
    try:
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        link = stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
        what = "a link" if link else "not a folder"
        raise RefusedError(f"{at} is {what}; envgen writes there only below a real folder", hint=f"rm {at}") from None


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder that is locked while its process lives: `leftovers` finds those of killed ones."""

    def __init__(self, kind: str) -> None:
        super().__init__(prefix=f"envgen-{kind}-")
        descriptor = os.open(self.name, _DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


_SCRATCH = re.compile(r"envgen-(build|git|patches|refresh|verify)-[a-z0-9_]{8}")
_TEMPORARY = re.compile(r"\.envgen-([0-9]{1,10})-[0-9a-f]{8}\.tmp")
_AT_WORK = 10.0  # seconds: younger ones may be just between two system calls


def leftovers(project: Path | None = None) -> list[Path]:
    """Temporary files in a project, and temporary folders of this user, that killed runs left behind."""
    return [*_scratch_left(Path(tempfile.gettempdir())), *(_files_left(project) if project else ())]


def remove_leftover(path: Path) -> None:
    """Delete what ``leftovers`` found."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _scratch_left(parent: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
        if not _SCRATCH.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            descriptor = os.open(entry.path, _DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            found = os.fstat(descriptor)
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _AT_WORK:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield Path(entry.path)
        except BlockingIOError:
            pass  # its process lives
        finally:
            os.close(descriptor)


def _files_left(project: Path) -> Iterator[Path]:
    """Temporary files in the folders that envgen writes to."""
    below = (path for name in ("compose", "docker", "patches", ".envgen", "results") for path in _tree(project / name))
    for at in (project, *below):
        yield from temporary_left(at)


def temporary_left(folder: Path) -> list[Path]:
    """Files in a folder that a killed `write` left behind."""
    found = []
    for path in sorted(folder.glob(".envgen-*.tmp")):
        name = _TEMPORARY.fullmatch(path.name)
        old = time.time() - path.lstat().st_mtime > _AT_WORK
        if name and old and not path.is_symlink() and not _runs(name[1]):
            found.append(path)
    return found


def _tree(folder: Path) -> Iterator[Path]:
    for at, _folders, _names in os.walk(folder):  # follows no link
        if not Path(at).is_symlink():
            yield Path(at)


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
