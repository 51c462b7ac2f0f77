"""Operation ``load``: modules from a saved archive, unpacked aside, then each put in its place by one rename.

The archive may come from anywhere: only plain files and folders are taken, only at places that a cache has, never more
than the disk holds, and nothing is placed before the last byte was read. What is there already stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import tarfile

from envgen.jitcache.agent.archive import END, FORMAT, HEAD, Sum, nanoseconds, parts_of, refused
from envgen.jitcache.agent.fault import Fault
from envgen.jitcache.agent.layout import root_of
from envgen.jitcache.agent.locks import own_as
from envgen.jitcache.agent.placing import place
from envgen.jitcache.agent.tree import FOLDER, reason, remove

STAGE = ".envgen-load-"
_MOST = 5_000_000  # members


def run(request: dict[str, object]) -> dict[str, object]:
    """Unpack ``source`` and place what is not there yet."""
    root = root_of(request)
    try:
        os.makedirs(root, exist_ok=True)
        fd = os.open(os.path.realpath(root), FOLDER)
    except OSError as error:
        raise Fault("refused", "the cache " + root + " can't be made: " + reason(error)) from None
    errors: list[str] = []
    device = os.fstat(fd).st_dev
    name = STAGE + os.urandom(8).hex()
    try:
        _sweep(fd, device)
        try:
            os.mkdir(name, 0o700, dir_fd=fd)
        except OSError as error:
            raise Fault("refused", "the cache can't be written: " + reason(error)) from None
        stage = os.open(name, FOLDER, dir_fd=fd)
        try:
            fcntl.flock(stage, fcntl.LOCK_EX)
            reader = _Reader(stage, fd, request, root)
            reader.read(str(request["source"]))
            placed, kept, problems = place(root, fd, stage)
        finally:
            os.close(stage)
            remove(name, fd, device, errors, name)
        return {"root": root, "modules": placed, "files": reader.files, "bytes": reader.bytes, "kept": kept,
                "problems": reader.problems + problems + errors}  # fmt: skip
    finally:
        os.close(fd)


def _sweep(fd: int, device: int) -> None:
    """What killed loads left behind: nothing of it was placed. A load at work holds a lock on its folder."""
    for name in os.listdir(fd):
        if not name.startswith(STAGE):
            continue
        try:
            stage = os.open(name, FOLDER, dir_fd=fd)
        except OSError:
            continue
        try:
            fcntl.flock(stage, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(name, fd, device, [], name)
        except OSError:
            pass
        finally:
            os.close(stage)


class _Reader:
    """Unpacks into the folder ``stage``."""

    def __init__(self, stage: int, root_fd: int, request: dict[str, object], root: str) -> None:
        self.stage = stage
        self.request = request
        self.root = root
        self.files = 0
        self.bytes = 0
        self.problems: list[str] = []
        self.sum = Sum()
        space = os.fstatvfs(root_fd)
        self.room = space.f_bavail * space.f_frsize
        self._open: tuple[tuple[str, ...], int] | None = None

    def read(self, source: str) -> None:
        """Everything, or a Fault. ``r|*``: from the first byte to the last, no seeking by what the archive says."""
        try:
            with open(source, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
                self._members(tar)
        except (tarfile.TarError, EOFError, ValueError, OverflowError, UnicodeError) as error:
            raise Fault("refused", "the archive is damaged: " + str(error) + "; nothing was changed") from None
        except OSError as error:
            raise Fault("failed", "the archive could not be unpacked: " + (str(error.strerror or error))) from None
        finally:
            if self._open is not None:
                os.close(self._open[1])

    def _members(self, tar: tarfile.TarFile) -> None:
        whole = False
        for number, member in enumerate(tar):
            if number == 0:
                self._check_head(tar, member)
                continue
            if whole or number > _MOST:
                raise refused(member.name, "comes after the end")
            if member.name == END:
                end = tar.extractfile(member) if member.isreg() and member.size == 64 else None
                whole = end is not None and end.read() == self.sum.text().encode("ascii")
                if not whole:
                    raise Fault("refused", "the archive is damaged: its sum is wrong; nothing was changed")
                continue
            self._take(tar, member)
            tar.members = []  # type: ignore[attr-defined]  # else tarfile remembers every one
        if not whole:
            raise Fault("refused", "the archive is cut off, or is none of a cache; nothing was changed")

    def _check_head(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        file = tar.extractfile(member) if member.name == HEAD and member.isreg() and member.size < 100_000 else None
        if file is None:
            raise Fault("refused", "this is no archive that `envgen cache save` wrote; nothing was changed")
        head = json.loads(file.read())
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise Fault("refused", "the archive is of another format, by another release of envgen")
        key = self.request.get("key") or ""
        if head.get("key") != key and not self.request.get("force"):
            what = "the archive is of another environment" + self._difference(head)
            raise Fault("refused", what + "; --force takes it all the same")
        if head.get("root") != self.root:
            there = str(head.get("root"))
            self.problems.append("saved from " + there + ": FlashInfer from 0.6.1 on has this path in its build files, "
                                 "and will compile again")  # fmt: skip

    def _difference(self, head: dict[str, object]) -> str:
        """Which of the things that the key is made of differ, where both sides tell."""
        there, here = head.get("made_of"), self.request.get("made_of")
        if not isinstance(there, dict) or not isinstance(here, dict) or not there or not here:
            return ""
        names = [name for name in sorted(set(there) | set(here)) if there.get(name) != here.get(name)]
        return ": " + ", ".join(
            str(name) + " was " + repr(there.get(name, "")) + ", here " + repr(here.get(name, "")) for name in names
        )

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise refused(member.name, "is neither a plain file nor a folder")
        parts = parts_of(member.name, folder=member.isdir())
        when = nanoseconds(str(member.pax_headers.get("mtime", member.mtime)))
        if member.isdir():
            self._folder(parts)
            return
        folder = self._folder(parts[:-1])
        self.room -= member.size
        if self.room < 0:
            raise Fault("refused", "the archive holds more than the disk has room for; nothing was changed")
        file = tar.extractfile(member)
        assert file is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            out = os.open(parts[-1], flags, 0o644 | (member.mode & 0o111), dir_fd=folder)
        except FileExistsError:
            raise refused(member.name, "is in it twice") from None
        try:
            self.sum.member(member.name, when, member.size)
            left = member.size
            while left:
                block = file.read(min(left, 1 << 20))
                if not block:
                    raise EOFError("it ends in the middle of " + repr(member.name))
                self.sum.data(block)
                left -= _write(out, block)
            own_as(out, self.stage)
            os.utime(out, ns=(when, when))
        finally:
            os.close(out)
        self.files += 1
        self.bytes += member.size

    def _folder(self, parts: list[str]) -> int:
        """The open folder in the stage, made where it is missing. The last one stays open: files come in rows."""
        wanted = tuple(parts)
        if self._open is not None and self._open[0] == wanted:
            return self._open[1]
        fd = os.dup(self.stage)
        for part in parts:
            try:
                try:
                    os.mkdir(part, 0o755, dir_fd=fd)
                    fresh = True
                except FileExistsError:
                    fresh = False
                inner = os.open(part, FOLDER, dir_fd=fd)
            except NotADirectoryError:
                raise refused("/".join(parts), "is a file in one place and a folder in another") from None
            finally:
                os.close(fd)
            fd = inner
            if fresh:
                own_as(fd, self.stage)
        if self._open is not None:
            os.close(self._open[1])
        self._open = (wanted, fd)
        return fd


def _write(fd: int, block: bytes) -> int:
    view = memoryview(block)
    done = 0
    while done < len(block):
        done += os.write(fd, view[done:])
    return done
