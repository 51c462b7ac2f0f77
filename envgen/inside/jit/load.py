"""Operation ``load``: modules from a saved archive, unpacked aside, then each put in its place by one rename.

The archive may come from anywhere: only plain files and folders are taken, only at places that a cache has, never more
than the disk holds, and nothing is placed before the last byte was read. What is there already stays.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import zlib

from envgen.inside.jit.archive import END, FORMAT, HEAD, Member, Members, Sum, damaged, parts_of, refused
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import root_of
from envgen.inside.jit.locks import own_as
from envgen.inside.jit.placing import Placed, place
from envgen.inside.jit.sweep import STAGE, alone, sweep_stages
from envgen.inside.jit.tree import FOLDER, FULL, reason, remove, short


def run(request: dict[str, object]) -> dict[str, object]:
    """Unpack ``source`` and place what is not there yet."""
    root = root_of(request)
    try:
        os.makedirs(root, exist_ok=True)
        fd = os.open(os.path.realpath(root), FOLDER)
    except OSError as error:
        raise Fault("refused", "the cache " + root + " can't be made: " + reason(error)) from None
    problems: list[str] = []
    device = os.fstat(fd).st_dev
    name = STAGE + os.urandom(8).hex()
    try:
        with alone(fd) as is_alone:
            if is_alone:
                sweep_stages(fd, device, problems)
            try:
                os.mkdir(name, 0o700, dir_fd=fd)
            except OSError as error:
                raise Fault("refused", "the cache can't be written: " + reason(error)) from None
            stage = os.open(name, FOLDER, dir_fd=fd)
            fcntl.flock(stage, fcntl.LOCK_EX)
        try:
            reader = _Reader(stage, fd, request, root)
            reader.read(str(request["source"]))
            placed = place(root, fd, stage)
        finally:
            os.close(stage)
            remove(name, fd, device, problems, name)
        return {"root": root, "modules": len(placed.came), **reader.counted(placed), "kept": placed.kept,
                "problems": reader.problems + placed.problems + problems}  # fmt: skip
    finally:
        os.close(fd)


class _Reader:
    """Unpacks into the folder ``stage``."""

    def __init__(self, stage: int, root_fd: int, request: dict[str, object], root: str) -> None:
        self.stage = stage
        self.request = request
        self.root = root
        self.sizes: dict[str, list[int]] = {}  # of each module, and of what else stands in the archive: files, bytes
        self.problems: list[str] = []
        self.sum = Sum()
        space = os.fstatvfs(root_fd)
        self.room = space.f_bavail * space.f_frsize
        self._open: tuple[tuple[str, ...], int] | None = None

    def counted(self, placed: Placed) -> dict[str, int]:
        """How much of what was unpacked came into the cache."""
        came = [sizes for name, sizes in self.sizes.items() if name in placed.came]
        return {"files": sum(files for files, _ in came), "bytes": sum(size for _, size in came)}

    def read(self, source: str) -> None:
        """Everything, or a Fault. From the first byte to the last, no seeking by what the archive says."""
        try:
            with open(source, "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                if packed:
                    with gzip.GzipFile(fileobj=file) as stream:
                        self._members(Members(stream))  # type: ignore[arg-type]
                else:
                    self._members(Members(file))
        except (EOFError, zlib.error) as error:
            raise damaged(str(error)) from None
        except OSError as error:
            if error.errno is None:  # what gzip raises for bytes that are none of its own
                raise damaged(str(error)) from None
            if error.errno in FULL:
                raise Fault("refused", "the disk of the cache is full; nothing was changed") from None
            raise Fault("failed", "the archive could not be unpacked: " + reason(error)) from None
        finally:
            if self._open is not None:
                os.close(self._open[1])

    def _members(self, members: Members) -> None:
        first = whole = False
        for member in members:
            if not first:
                self._check_head(members, member)
                first = True
            elif whole:
                raise refused(member.name, "comes after the end")
            elif member.name == END:
                whole = member.size == 64 and members.read(64) == self.sum.text().encode("ascii")
                if not whole:
                    raise damaged("its sum is wrong")
            else:
                self._take(members, member)
        if not whole:
            raise Fault("refused", "the archive is cut off, or is not one of a cache; nothing was changed")

    def _check_head(self, members: Members, member: Member) -> None:
        if member.name != HEAD or member.is_folder or member.size >= 100_000:
            raise Fault("refused", "this is not an archive that `envgen cache save` wrote; nothing was changed")
        try:
            head = json.loads(members.read(member.size))
        except (ValueError, RecursionError):
            raise damaged("its first member is not JSON") from None
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise Fault("refused", "the archive is of another format, by another release of envgen")
        key = self.request.get("key") or ""
        if head.get("key") != key and not self.request.get("force"):
            what = "the archive is of another environment" + self._difference(head)
            raise Fault("refused", what + "; --force takes it anyway")
        if head.get("root") != self.root:
            there = short(str(head.get("root")))
            self.problems.append("saved from " + there + ": FlashInfer from 0.6.1 on has this path in its build files, "
                                 "and will compile again")  # fmt: skip

    def _difference(self, head: dict[str, object]) -> str:
        """Which of the things that the key is made of differ, where both sides tell."""
        there, here = head.get("made_of"), self.request.get("made_of")
        if not isinstance(there, dict) or not isinstance(here, dict) or not there or not here:
            return ""
        names = [name for name in sorted(set(there) | set(here)) if there.get(name) != here.get(name)]
        return ": " + ", ".join(
            (name if name.isidentifier() else repr(short(name)))
            + " was " + short(repr(there.get(name, ""))) + ", here " + short(repr(here.get(name, "")))
            for name in names[:20]
        )  # fmt: skip

    def _take(self, members: Members, member: Member) -> None:
        parts = parts_of(member.name, folder=member.is_folder)
        if member.is_folder:
            self._folder(parts)
            return
        folder = self._folder(parts[:-1])
        self.room -= member.size
        if self.room < 0:
            raise Fault("refused", "the archive holds more than the disk has room for; nothing was changed")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            out = os.open(parts[-1], flags, 0o644 | (member.mode & 0o111), dir_fd=folder)
        except FileExistsError:
            raise refused(member.name, "is in it twice") from None
        try:
            self.sum.member(member.name, member.when, member.size)
            while True:
                block = members.read(1 << 20)
                if not block:
                    break
                self.sum.data(block)
                _write(out, block)
            own_as(out, self.stage)
            os.utime(out, ns=(member.when, member.when))
        finally:
            os.close(out)
        at = parts.index("cached_ops") + 2 if "cached_ops" in parts[1:3] else 1
        sizes = self.sizes.setdefault("/".join(parts[:at]), [0, 0])
        sizes[0] += 1
        sizes[1] += member.size

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


def _write(fd: int, block: bytes) -> None:
    view = memoryview(block)
    done = 0
    while done < len(block):
        done += os.write(fd, view[done:])
