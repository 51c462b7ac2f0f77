"""Bounded reads and atomic writes, which never wait for a FIFO, read a device, or follow a link out
of a root.

Files may come from another user (a cloned project, a container with a mounted checkout), and a
write may be interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from envgen.errors import RefusedError, UsageError
from envgen.text import reason_of

LARGEST = 64 << 20  # bytes of one file
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NotAFile(OSError):
    """A path that is not a regular file, but a FIFO, a device, a folder, or a link where none is
    allowed.
    """

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


def trouble(error: OSError) -> RefusedError:
    """A file system error as a RefusedError: no space, no permission, a removed folder."""
    try:
        Path.cwd()
    except FileNotFoundError:
        if error.filename is None:
            return RefusedError("the current folder was removed", hint="cd to another folder")
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    reason = reason_of(error).lower()
    hint = _HINTS.get(error.errno or 0, "")
    return RefusedError(
        f"{where}: {reason}" if where else f"the file system refused: {reason}", hint=hint
    )


_HINTS = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "free some space: your quota is used up",
    errno.EROFS: "the file system is mounted read-only: work in a copy elsewhere",
    errno.EACCES: "check who owns it",
    errno.EPERM: "check who owns it",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


def read(path: Path, *, limit: int = LARGEST, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; OSError for anything else.

    ``follow=False``: OSError for a link as the last part of ``path``, too.
    """
    with opened(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:  # not read at all otherwise: it may be sparse
            content = file.read(limit + 1)
            size = len(content)
    if size > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 10} KiB", str(path))
    return content


@contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """A regular file for reading; OSError for anything else."""
    flags = (
        os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    )
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
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    within: Path | None = None,
    new: bool = False,
) -> None:
    """Write a file atomically: a temporary file beside it, synced to disk and renamed.

    An existing file keeps its mode, unless ``mode`` is given. A link at ``path`` is replaced, never
    followed. With ``within`` (a folder above ``path``) missing folders are created, and a link
    between the two is refused.
    ``new``: FileExistsError where that name exists.
    """
    directory = folder(path.parent, within)
    temporary = directory / f".envgen-{secrets.token_hex(8)}.tmp"
    try:
        with os.fdopen(os.open(temporary, _NEW, 0o644 if mode is None else mode), "wb") as out:
            mode = _mode_of(path) if mode is None else mode
            if mode is not None:
                os.fchmod(out.fileno(), mode)
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if new:  # a rename would replace a file of that name
            os.link(temporary, path)
        else:
            temporary.replace(path)
    except OSError as error:
        if not isinstance(error.filename, str) or error.filename != str(path):
            error.filename = str(path)
            error.filename2 = None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def create(path: Path, *, within: Path) -> TextIO:
    """A new text file to write line by line. FileExistsError where that name exists."""
    descriptor = os.open(folder(path.parent, within) / path.name, _NEW, 0o644)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")


@contextmanager
def locked(path: Path, *, within: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One process at a time, by a lock of a file. ``on_wait`` is called before waiting, and may
    raise.

    The lock of a killed process ends with it.
    """
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder(path.parent, within) / path.name, flags, 0o644)
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
    """``path`` with its links resolved; RefusedError where they lead out of ``root``."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(Path(os.path.realpath(root))):
        raise RefusedError(
            f"refusing to write {path}: a link leads it out of {root}", hint=f"rm {path}"
        )
    return target


STATE = ".envgen"  # of a project


def state_dir(root: Path, *parts: str) -> Path:
    """``<project>/.envgen``: logs, rendered files of builds, and state. Git-ignored; safe to
    delete.

    RefusedError for a link of that name, as in a hostile project.
    """
    return folder(root.joinpath(STATE, *parts), root, create=False)


def state_files(root: Path, part: str, pattern: str) -> list[tuple[Path, os.stat_result]]:
    """The regular files of a folder in ``state_dir`` and their states, the oldest first."""
    there = []
    folder = state_dir(root, part)
    for path in folder.glob(pattern):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                there.append((path, status))
    return sorted(there, key=lambda one: one[1].st_mtime_ns)


def xdg_dir(variable: str, default: str, environ: Mapping[str, str] | None = None) -> Path:
    """An XDG base folder: the variable, if absolute; else ``default`` below the home folder."""
    environ = os.environ if environ is None else environ
    given = environ.get(variable, "")
    if given.startswith("/"):
        return Path(given)
    try:
        return Path(environ.get("HOME") or "~").expanduser() / default
    except RuntimeError:
        raise UsageError("no home folder is known", hint=f"set HOME or {variable}") from None


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """``~/.cache/envgen``, or below XDG_CACHE_HOME."""
    return xdg_dir("XDG_CACHE_HOME", ".cache", environ) / "envgen"


def is_ours(path: Path, *, root: bool = False) -> bool:
    """Whether a path belongs to the user, or under sudo to the user who called sudo: git's own
    rule.

    ``root``: also where it belongs to root.
    """
    owner = path.lstat().st_uid
    called = os.environ.get("SUDO_UID", "")
    sudo = os.geteuid() == 0 and called.isdecimal() and owner == int(called)
    return owner == os.geteuid() or sudo or (root and owner == 0)


def _mode_of(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None
    return None


def folder(path: Path, within: Path | None = None, *, create: bool = True) -> Path:
    """``path``. RefusedError for a link between ``within`` and it; ``create`` creates what is
    missing there.
    """
    at = path if within is None else within
    for part in path.relative_to(at).parts:
        at = at / part
        if part == "..":
            raise RefusedError(f"{path} leads out of {within}")
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            what = "a link" if at.is_symlink() else "not a folder"
            raise RefusedError(
                f"{at} is {what}; envgen writes only below a real folder", hint=f"rm {at}"
            )
        if create and not at.exists():
            at.mkdir(exist_ok=True)
            if part == STATE:  # with a project file of one's own, no `init` has written one
                (at / ".gitignore").write_text("*\n", encoding="ascii")
    return path


# --- temporary folders
# ------------------------------------------------------------------------------------------------

SHORT = Path("/tmp")  # for sockets, whose paths are short; TMPDIR may be long


class Scratch:
    """A temporary folder, removed at the end of the block, of this object, or of the process.
    ``parent``: its folder.

    What a killed run leaves, the machine removes with its other temporary files.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        self.name = tempfile.mkdtemp(prefix=f"envgen-scratch-{kind}-", dir=parent)
        self._end = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it now."""
        self._end()


# envgen's own data: at the top of a checkout, inside the package of a wheel.

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder ``docker`` (programs for builds and containers) or ``templates``.
    FileNotFoundError: reinstall.
    """
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"envgen is installed without its {name} (looked beside {_PACKAGE}); reinstall it"
    )
