"""Files: one bounded read, one atomic write. Neither waits for a FIFO, reads a device, or follows a link out of a root.

Everything that envgen reads may come from another user (a cloned project, a container that mounts a
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from envgen.errors import RefusedError, UsageError
from envgen.text import reason_of

LARGEST = 64 << 20  # of a file that is read whole
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotAFile(OSError):
    """A path that should be a regular file and is a FIFO, a device, a folder, or a link where none may be."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


def trouble(error: OSError) -> RefusedError:
    """An error of the file system, as the user's error: no space, no permission, a folder that is gone."""
    try:
        Path.cwd()
    except FileNotFoundError:
        if error.filename is None:
            return RefusedError("the current folder was removed", hint="cd to another one")
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    reason = reason_of(error).lower()
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


def read(path: Path, *, limit: int = LARGEST, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Anything else is an ``OSError``, at once.

    ``follow=False`` refuses a link as the last part of ``path`` too.
    """
    with opened(path, follow=follow) as file:
        large = os.fstat(file.fileno()).st_size > limit  # a sparse file costs its size, not what is written in it
        content = b"" if large else file.read(limit + 1)
    if large or len(content) > limit:
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
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFile(path, "is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def write(
    path: Path, content: bytes, *, mode: int | None = None, within: Path | None = None, new: bool = False
) -> None:
    """Write a file whole or not at all: a temporary file beside it, on disk before it takes the name.

    A file that is there keeps its mode, unless ``mode`` names one. A link at ``path`` is replaced, never followed.
    With ``within`` (a folder above ``path``) missing folders are made, and a link between the two is refused.
    ``new``: FileExistsError where anything has that name already.
    """
    with writing(path, mode=mode, within=within, new=new) as out:
        out.write(content)


@contextlib.contextmanager
def writing(
    path: Path, *, mode: int | None = None, within: Path | None = None, new: bool = False
) -> Iterator[BinaryIO]:
    """As ``write``, for a content that comes in pieces: the file takes its name when the block ends well."""
    try:
        with folder(path.parent, within) as directory:
            yield from _written(directory, path.name, mode, new)
    except OSError as error:
        if not isinstance(error.filename, str) or error.filename != str(path):
            error.filename, error.filename2 = str(path), None
        raise


def _written(directory: int, name: str, mode: int | None, new: bool) -> Iterator[BinaryIO]:
    temporary = f".envgen-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, _NEW, 0o644 if mode is None else mode, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as out:
            before = _mode_of(name, directory) if mode is None else mode
            if before is not None:
                os.fchmod(out.fileno(), before)
            yield out
            out.flush()
            os.fsync(out.fileno())
            if new:
                name_new(temporary, name, directory)
            else:
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                temporary = ""
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)


def name_new(written: str, name: str, directory: int | None = None) -> None:
    """Give a finished file a new name: FileExistsError where anything has it already, which a rename would replace."""
    try:
        os.link(written, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        # A file system without hard links: an empty file reserves the name.
        os.close(os.open(name, _NEW, 0o600, dir_fd=directory))
        os.rename(written, name, src_dir_fd=directory, dst_dir_fd=directory)


def create(path: Path, *, within: Path) -> TextIO:
    """A new text file to write to line by line. FileExistsError where anything has that name already."""
    with folder(path.parent, within) as directory:
        descriptor = os.open(path.name, _NEW, 0o644, dir_fd=directory)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def locked(path: Path, *, within: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One process at a time, by the lock of a file; ``on_wait`` is called before waiting, and may refuse to.

    The kernel forgets the lock of a process that was killed.
    """
    with folder(path.parent, within) as directory:
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o644, dir_fd=directory)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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


def xdg_dir(variable: str, default: str, environ: Mapping[str, str] | None = None) -> Path:
    """A base folder of the user, which counts only as an absolute path; ``default`` is below the home folder."""
    environ = os.environ if environ is None else environ
    given = environ.get(variable, "")
    if given.startswith("/"):
        return Path(given)
    try:
        return Path(environ.get("HOME") or "~").expanduser() / default
    except RuntimeError:
        raise UsageError("there is no home folder", hint=f"set HOME or {variable}") from None


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """``~/.cache/envgen``, or below XDG_CACHE_HOME."""
    return xdg_dir("XDG_CACHE_HOME", ".cache", environ) / "envgen"


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
    at = path if within is None else within
    descriptor = os.open(at, _DIRECTORY)
    try:
        for part in path.relative_to(at).parts:
            if part == "..":
                raise RefusedError(f"{path} leads out of {within}")
            at = at / part
            inner = _enter(descriptor, part, at, create)
            os.close(descriptor)
            descriptor = inner
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


# --- temporary folders, and what a killed run leaves ------------------------------------------------------------------

SHORT = Path("/tmp")  # for sockets: TMPDIR may be longer than the path of one may be
UNFINISHED = 86400.0  # seconds after which no run is expected to finish a temporary file or folder
# Nothing else of that name is ever removed: the random part is that of mkdtemp and token_hex. A folder of `engine` has
# the sockets of a connection, which `up --stay` may need for weeks.
_OURS = re.compile(r"envgen-scratch-(?!engine)[a-z]+-[a-z0-9_]{8}|\.envgen-[0-9a-f]{16}\.tmp")


class Scratch:
    """A temporary folder, gone when the block ends, this object, or the process. ``parent``: not the system's own.

    What killed runs left beside it goes, once it is old enough that none of them can still be running.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        for left in _left_in(Path(tempfile.gettempdir()) if parent is None else parent):
            remove_leftover(left)
        self.name = tempfile.mkdtemp(prefix=f"envgen-scratch-{kind}-", dir=parent)
        self._end = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it now."""
        self._end()


def leftovers(project: Path) -> list[Path]:
    """Temporary files and folders of runs that were killed, wherever envgen writes: by their names, and their age."""
    folders = [*_trees(project, ("compose", "docker", "patches", "results", ".envgen"))]
    with contextlib.suppress(UsageError):
        folders += _trees(cache_dir(), ("sdists", "tried-patches"))
    return sorted(
        path for folder in dict.fromkeys((*folders, Path(tempfile.gettempdir()))) for path in _left_in(folder)
    )


def _left_in(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(one) for one in entries if _OURS.fullmatch(one.name) and _is_left(one)]
    return []


def _is_left(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return plain and status.st_uid == os.geteuid() and time.time() - status.st_mtime > UNFINISHED


def remove_leftover(path: Path) -> str:
    """Delete what ``leftovers`` found. Why it stayed; "": it is gone."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return "it can't be removed" if os.path.lexists(path) else ""


def _trees(root: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder, and all folders in some of its folders. No link is followed."""
    yield root
    for name in names:
        with contextlib.suppress(OSError):
            for at, *_ in os.fwalk(root / name):
                yield Path(at)


# Where envgen's own data is: in a checkout at the top, in an installed wheel inside the package.

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder ``docker`` (programs for builds and containers) or ``templates``. FileNotFoundError: reinstall."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"envgen is installed without its {name} (looked beside {_PACKAGE}); reinstall it")
