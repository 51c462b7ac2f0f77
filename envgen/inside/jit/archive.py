"""Operations ``save`` and ``load``: a whole namespace as one tar archive, and back.

Its first member says what it is, its last that it is whole. Times are kept to the nanosecond, in the extended headers
of the POSIX format: ninja compiles again what is younger than its record says, and a baseline knows its library by this
time. Members are named as they lie below the cache's root.

An archive may come from anywhere: only plain files and folders are taken, only below the root, never more than the disk
holds, each header is bounded, and nothing is placed before the last byte was read.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import zlib
from typing import BinaryIO

from envgen.inside.jit.choose import Survey
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.hold import Hold, close_all
from envgen.inside.jit.layout import BESIDE, LEARNED, LIVE, OURS, Cache, Shelf, open_cache, root_of
from envgen.inside.jit.locks import enter, own_as
from envgen.inside.jit.members import MOST, Member, Members, damaged, refused
from envgen.inside.jit.sweep import STAGE, alone, sweep_stages
from envgen.inside.jit.tree import DEEPEST, FILE, FOLDER, FULL, GONE, descend, kind_of, note, reason, remove, short

FORMAT = 1
HEAD = "envgen-cache.json"
END = "envgen-cache.end"
MODULE = re.compile(r"[^/]+(?:/[^/]+)?/cached_ops/([^/]+)/")
_LONGEST = 1024  # bytes of a name; FlashInfer's longest are some 400
_PART = 255  # what a file system takes


def why_not(name: str) -> str:
    """Why a cache holds nothing of this name; empty when it may."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        return "leads out of the cache"
    if len(parts) > DEEPEST:
        return "is nested more than " + str(DEEPEST) + " folders deep"
    if len(os.fsencode(name)) > _LONGEST or any(len(os.fsencode(part)) > _PART for part in parts):
        return "has a name longer than any in a cache"
    if (parts[0].startswith(".") and parts[0] != OURS) or any(part.startswith(".envgen-") for part in parts):
        return "does not belong into a cache"
    return ""


class Sum:
    """SHA-256 over names, times and bytes in their order. It is in the last member: a library with one wrong bit
    would be loaded into a GPU."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.data = self._digest.update

    def member(self, name: str, when: int, size: int) -> None:
        self.data((name + "\0" + str(when) + "\0" + str(size) + "\0").encode("utf-8", "surrogateescape"))

    def text(self) -> str:
        return self._digest.hexdigest()


def time_text(nanoseconds: int) -> str:
    """As it is in the extended header: seconds, a point, nine digits."""
    return "%d.%09d" % divmod(nanoseconds, 10**9)


# Saving


def save(request: dict[str, object]) -> dict[str, object]:
    """Write the archive into ``target``, an empty file, under the locks of all modules."""
    root = root_of(request)
    cache = open_cache(root, "", None)
    if cache is None:
        raise Fault("not_found", "there is no cache at " + root)
    try:
        chosen = [(shelf, [e.name for e in entries if e.kind == "folder"]) for shelf, entries in Survey(cache).found]
        count = sum(len(names) for _, names in chosen)
        if not count:
            raise Fault("not_found", "the cache is empty")
        hold = Hold(chosen)
        try:
            writer = _Writer(cache)
            writer.write(request, root)
        except OSError as error:
            kind = "refused" if error.errno in FULL else "failed"
            raise Fault(kind, "the archive can't be written: " + reason(error)) from None
        finally:
            hold.release()
        return {"root": root, "modules": count, "files": writer.files, "bytes": writer.bytes,
                "problems": cache.problems, "replaced": []}  # fmt: skip
    finally:
        cache.close()


class _Writer:
    """Adds folders by descriptor: no link is followed, and nothing but files and folders is written."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.files = self.bytes = self.members = 0
        self.sum = Sum()

    def write(self, request: dict[str, object], root: str) -> None:
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(str(request["target"]), flags), "wb") as out:
            # Libraries shrink to a third at any level; the lowest is five times as fast as the usual one.
            packed = gzip.GzipFile("", "wb", 1, out, mtime=0) if request.get("compress") else out
            with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                head = {"format": FORMAT, "root": root, "key": request.get("key") or "",
                        "made_of": request.get("made_of") or {}}  # fmt: skip
                self._text(tar, HEAD, json.dumps(head))
                for path, folders, names, fd in os.fwalk(".", dir_fd=self.cache.fd, onerror=self._unread):
                    inner = path[2:] + "/" if path != "." else ""
                    folders[:] = [name for name in sorted(folders) if self._add(tar, inner + name, name, fd)]
                    for name in sorted(names):
                        self._add(tar, inner + name, name, fd)
                self._text(tar, END, self.sum.text())
            if packed is not out:
                packed.close()
            out.flush()
            os.fsync(out.fileno())

    def _unread(self, error: OSError) -> None:
        note(self.cache.problems, short(str(error.filename)) + ": left out: " + reason(error))

    def _text(self, tar: tarfile.TarFile, name: str, text: str) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text), 0o644
        tar.addfile(info, io.BytesIO(text.encode("ascii")))

    def _add(self, tar: tarfile.TarFile, shown: str, name: str, dir_fd: int) -> bool:
        """Add one file or folder; False for what stays out, above all what ``load`` would refuse."""
        self.members += 1
        if self.members > MOST - 10:
            raise Fault("refused", "the cache holds more than " + str(MOST) + " files, too many for an archive")
        if name.startswith(".envgen-") or shown == LIVE:
            return False  # what killed runs left; what is nothing to another machine
        why = why_not(shown)
        fd = -1
        try:
            if not why:
                fd = os.open(name, FILE, dir_fd=dir_fd)
                why = self._add_open(tar, shown, fd)
        except OSError as error:
            if error.errno in GONE:
                return False
            if fd >= 0:
                raise  # the archive can't be written
            why = reason(error)
        finally:
            if fd >= 0:
                os.close(fd)
        if why:
            note(self.cache.problems, short(shown) + ": left out: " + why)
        return not why

    def _add_open(self, tar: tarfile.TarFile, shown: str, fd: int) -> str:
        status = os.fstat(fd)
        info = tarfile.TarInfo(shown)
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = status.st_mtime_ns // 10**9
        info.pax_headers = {"mtime": time_text(status.st_mtime_ns)}
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            return ""
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        info.size = status.st_size
        self.sum.member(shown, status.st_mtime_ns, status.st_size)
        with os.fdopen(os.dup(fd), "rb") as file:
            try:
                tar.addfile(info, _Summed(file, self.sum))
            except OSError as error:
                if error.errno is not None:
                    raise
                raise Fault("failed", shown + " became shorter while it was read; save again") from None
        self.files += 1
        self.bytes += status.st_size
        return ""


class _Summed:
    """A file whose bytes go into a sum as they are read."""

    def __init__(self, file: BinaryIO, total: Sum) -> None:
        self.file = file
        self.sum = total

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.sum.data(block)
        return block


# Loading


def load(request: dict[str, object]) -> dict[str, object]:
    """Unpack ``source`` aside, check it whole, then put each version in its place by one rename.

    Modules of a version that is there already stop it, unless ``replace``. ``dry_run``: check, and place nothing.
    """
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
            replaced = _place(root, fd, stage, request)
        finally:
            os.close(stage)
            remove(name, fd, device, problems, name)
        return {"root": root, "modules": len(reader.modules), "files": reader.files, "bytes": reader.bytes,
                "replaced": replaced, "problems": reader.problems + problems}  # fmt: skip
    finally:
        os.close(fd)


class _Reader:
    """Unpacks into the folder ``new`` of the stage."""

    def __init__(self, stage: int, root_fd: int, request: dict[str, object], root: str) -> None:
        self.stage = stage
        self.request = request
        self.root = root
        self.modules: set[str] = set()
        self.files = self.bytes = 0
        self.problems: list[str] = []
        self.sum = Sum()
        space = os.fstatvfs(root_fd)
        self.room = space.f_bavail * space.f_frsize
        self._open: tuple[tuple[str, ...], int] | None = None

    def read(self, source: str) -> None:
        """Everything, or a Fault. From the first byte to the last, no seeking by what the archive says."""
        try:
            with open(source, "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                stream = gzip.GzipFile(fileobj=file) if packed else file
                self._members(Members(stream))  # type: ignore[arg-type]
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
        if head.get("key") != (self.request.get("key") or "") and not self.request.get("force"):
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
        why = why_not(member.name)
        if why:
            raise refused(member.name, why)
        parts = member.name.split("/")
        found = MODULE.match(member.name + "/" * member.is_folder)
        if found and found.group(1) != "tmp":
            self.modules.add(found.group())
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
        self.sum.member(member.name, member.when, member.size)
        with os.fdopen(out, "wb") as file:
            for block in iter(lambda: members.read(1 << 20), b""):
                self.sum.data(block)
                file.write(block)
            file.flush()
            own_as(out, self.stage)
            os.utime(out, ns=(member.when, member.when))
        self.files += 1
        self.bytes += member.size

    def _folder(self, parts: list[str]) -> int:
        """The open folder in the stage, made where it is missing. The last one stays open: files come in rows."""
        wanted = ("new", *parts)
        if self._open is not None and self._open[0] == wanted:
            return self._open[1]
        try:
            fd = descend(self.stage, wanted, enter)
        except NotADirectoryError:
            raise refused("/".join(parts), "is a file in one place and a folder in another") from None
        if self._open is not None:
            os.close(self._open[1])
        self._open = (wanted, fd)
        return fd


def _place(root: str, root_fd: int, stage: int, request: dict[str, object]) -> list[str]:
    """Move what was unpacked to where it belongs, under FlashInfer's locks; the modules that had to go for it."""
    new, old = enter(stage, "new"), enter(stage, "old")
    versions = set(os.listdir(new))
    cache = open_cache(root, "", None)
    there: list[tuple[Shelf, list[str]]] = []
    hold = None
    try:
        links = [name for name in versions if kind_of(name, root_fd) == "link"]
        if links:
            raise Fault("refused", links[0] + " in the cache is a link; nothing was changed")
        for shelf, entries in Survey(cache).found if cache is not None else ():
            if shelf.version in versions:
                there.append((shelf, [entry.name for entry in entries if entry.kind == "folder"]))
        replaced = [shelf.shown + "/" + name for shelf, names in there for name in names]
        if replaced and not request.get("replace"):
            what = "%d modules of the same version are there already, %s first" % (len(replaced), replaced[0])
            raise Fault("refused", what + "; --replace puts those of the archive in their place")
        if request.get("dry_run"):
            return replaced
        hold = Hold(there)
        _swap(new, root_fd, old, "")
        return replaced
    except OSError as error:
        raise Fault("failed", "not everything could be placed: " + reason(error) + "; load again") from None
    finally:
        if hold is not None:
            hold.release()
        close_all([new, old])
        if cache is not None:
            cache.close()


def _is_merged(path: str) -> bool:
    """A folder of envgen's records, of which what is there and what comes are both kept."""
    return path in (OURS, OURS + "/baseline") or (path + "/").startswith(LEARNED + "/")


def _swap(source: int, target: int, old: int, path: str) -> None:
    """Rename each name from ``source`` into ``target``, and what has that name there into ``old``.

    Cubins and tuning results that are there stay; of envgen's own records each is swapped by itself.
    """
    # Modules come last: a load that was killed before can simply be run again.
    for name in sorted(os.listdir(source), key=lambda name: (not path and name[:1].isdigit(), name)):
        if path + name == LIVE:
            continue  # of an older envgen's archive; gates may run here
        if _is_merged(path + name) and stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode):
            inner, there = os.open(name, FOLDER, dir_fd=source), enter(target, name)
            try:
                _swap(inner, there, old, path + name + "/")
            finally:
                close_all([inner, there])
            continue
        aside = "%d-%s" % (len(os.listdir(old)), name[:100])
        try:
            os.stat(name, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            continue
        if name in BESIDE and not path:
            continue
        os.rename(name, aside, src_dir_fd=target, dst_dir_fd=old)
        try:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        except OSError:
            os.rename(aside, name, src_dir_fd=old, dst_dir_fd=target)
            raise
