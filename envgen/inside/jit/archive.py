"""Operations ``save`` and ``load``: a whole namespace as one tar archive, packed by gzip, and back.

Times are kept to the nanosecond: ninja compiles again what is younger than its record says, and a baseline knows its
library by this time. An archive may come from anywhere: nothing is placed before its last byte was checked.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import tarfile
import zlib
from typing import Any, BinaryIO

from envgen.inside.jit import tree
from envgen.inside.jit.layout import BESIDE, LEARNED, LIVE, OURS, Cache, modules_of, open_cache, root_of
from envgen.inside.jit.locks import Hold, enter, own_as, scratch, sweep

FORMAT = 2
HEAD = "envgen-cache.json"
MODULE = re.compile(r"[^/]+(?:/[^/]+)?/cached_ops/([^/]+)/")
MOST = 1_000_000  # members
BLOCK = 1 << 20
_LONGEST = 1024  # bytes of a name; FlashInfer's longest are some 400
_PART = 255  # what a file system takes
_HEADER = 16 << 10  # bytes of all headers of one member; envgen writes some 1,500, with the longest name 4,000
_BIGGEST = 1 << 40  # bytes of one file
_END = 64 << 10  # zeros behind the last member; tar writes up to 10 KiB
_TIME = re.compile(r"([0-9]{1,11})(?:\.([0-9]{0,9}))?\Z")
_UNCHANGED = "; nothing was changed"


def why_not(name: str) -> str:
    """Why a cache holds nothing of this name; empty when it may."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        return "leads out of the cache"
    if len(parts) > tree.DEEPEST:
        return "is nested more than " + str(tree.DEEPEST) + " folders deep"
    if len(os.fsencode(name)) > _LONGEST or any(len(os.fsencode(part)) > _PART for part in parts):
        return "has a name longer than any in a cache"
    if (parts[0].startswith(".") and parts[0] != OURS) or any(part.startswith(".envgen-") for part in parts):
        return "does not belong into a cache"
    return ""


def refused(what: str) -> tree.Fault:
    return tree.Fault("refused", what + _UNCHANGED)


def not_taken(name: str, why: str) -> tree.Fault:
    return refused("the archive is not taken: " + repr(tree.short(name)) + " " + why)


def damaged(why: str) -> tree.Fault:
    return refused("the archive is damaged: " + why)


# Saving


def run_save(request: dict[str, Any]) -> dict[str, Any]:
    """Write the archive into ``target``, an empty file, under the locks of all modules."""
    root = root_of(request)
    cache = open_cache(root)
    if cache is None:
        raise tree.Fault("not_found", "there is no cache at " + root)
    with cache:
        chosen = modules_of(cache)
        count = sum(len(names) for _, names in chosen)
        if not count:
            raise tree.Fault("not_found", "the cache is empty")
        hold = Hold(chosen)
        try:
            writer = _Writer(cache)
            writer.write(request, root)
        except OSError as error:
            kind = "refused" if error.errno in tree.FULL else "failed"
            raise tree.Fault(kind, "the archive can't be written: " + tree.reason(error)) from None
        finally:
            hold.release()
        return {"root": root, "modules": count, "files": writer.files, "bytes": writer.bytes,
                "problems": cache.problems, "replaced": []}  # fmt: skip


class _Writer:
    """Adds folders by descriptor: no link is followed, and nothing but files and folders is written."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.files = self.bytes = self.members = 0

    def write(self, request: dict[str, Any], root: str) -> None:
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(str(request["target"]), flags), "wb") as out:
            # Libraries shrink to a third at any level; the lowest is five times as fast as the usual one.
            packed = gzip.GzipFile("", "wb", 1, out, mtime=0)
            with packed, tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                described = {"format": FORMAT, "root": root, "key": request.get("key") or ""}
                head = json.dumps(described).encode("ascii")
                first = tarfile.TarInfo(HEAD)
                first.size = len(head)
                tar.addfile(first, io.BytesIO(head))
                for path, folders, names, fd in os.fwalk(".", dir_fd=self.cache.fd, onerror=self._unread):
                    inner = path[2:] + "/" if path != "." else ""
                    folders[:] = [name for name in sorted(folders) if self._add(tar, inner + name, name, fd)]
                    for name in sorted(names):
                        self._add(tar, inner + name, name, fd)
            out.flush()
            os.fsync(out.fileno())

    def _unread(self, error: OSError) -> None:
        tree.note(self.cache.problems, tree.short(str(error.filename)) + ": left out: " + tree.reason(error))

    def _add(self, tar: tarfile.TarFile, shown: str, name: str, dir_fd: int) -> bool:
        """Add one file or folder; False for what stays out, above all what ``load`` would refuse."""
        self.members += 1
        if self.members > MOST - 10:
            raise tree.Fault("refused", "the cache holds more than " + str(MOST) + " files, too many for an archive")
        if name.startswith(".envgen-") or shown == LIVE:
            return False  # what killed runs left; what is nothing to another machine
        why, fd = why_not(shown), -1
        try:
            fd = -1 if why else os.open(name, tree.FILE, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in tree.GONE:
                return False
            why = tree.reason(error)
        if fd >= 0:
            try:
                why = self._add_open(tar, shown, fd)
            finally:
                os.close(fd)
        if why:
            tree.note(self.cache.problems, tree.short(shown) + ": left out: " + why)
        return not why

    def _add_open(self, tar: tarfile.TarFile, shown: str, fd: int) -> str:
        status = os.fstat(fd)
        info = tarfile.TarInfo(shown)
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.pax_headers = {"mtime": "%d.%09d" % divmod(status.st_mtime_ns, 10**9)}
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            return ""
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        info.size = status.st_size
        with open(fd, "rb", closefd=False) as file:
            tar.addfile(info, file)
        self.files += 1
        self.bytes += status.st_size
        return ""


# Loading


def run_load(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack ``source`` aside, check it whole, then put each version in its place by one rename."""
    root = root_of(request)
    with tree.refusing("the cache " + root + " can't be made"):
        os.makedirs(root, exist_ok=True)
        fd = os.open(os.path.realpath(root), tree.FOLDER)
    problems: list[str] = []
    try:
        sweep(fd, problems)
        with scratch(fd, problems) as stage:
            reader = _Reader(stage, fd, request, root)
            reader.read(str(request["source"]))
            replaced = _place(root, fd, stage, request)
        return {"root": root, "modules": len(reader.modules), "files": reader.files, "bytes": reader.bytes,
                "replaced": replaced, "problems": reader.problems + problems}  # fmt: skip
    finally:
        os.close(fd)


class _Bounded:
    """What ``tarfile`` reads headers from: it would take one of gigabytes into memory. No seeking but forward."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0
        self._last = b""
        self.left = _HEADER

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        self.take(place - self._at)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise damaged("a file of it has a header of more than " + str(_HEADER) + " bytes")
        self.left -= size
        self._last = self._stream.read(size)
        self._at += len(self._last)
        return self._last

    def take(self, size: int) -> bytes:
        """Exactly ``size`` bytes of a file in it."""
        data = self._stream.read(size)
        if len(data) < size:
            raise damaged("it ends in the middle of a file")
        self._at += len(data)
        return data

    def is_at_end(self) -> bool:
        """Was the last header of zeros, and all until gzip's checksum, which is compared here? Else ``tarfile`` took
        what it can't read for the end."""
        rest = self._stream.read(_END + 1)
        return len(rest) <= _END and not (self._last + rest).strip(b"\0")


class _Reader:
    """Unpacks into the folder ``new`` of the stage."""

    def __init__(self, stage: int, root_fd: int, request: dict[str, Any], root: str) -> None:
        self.stage = stage
        self.request = request
        self.root = root
        self.modules: set[str] = set()
        self.files = self.bytes = 0
        self.problems: list[str] = []
        space = os.fstatvfs(root_fd)
        self.room = space.f_bavail * space.f_frsize

    def read(self, source: str) -> None:
        """Everything, or a Fault. From the first byte to the last."""
        # ``tarfile`` itself raises any of these for bytes that nothing wrote.
        odd = (EOFError, zlib.error, tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError)
        try:
            with open(source, "rb") as file, gzip.GzipFile(fileobj=file) as packed:
                self._members(_Bounded(packed))  # type: ignore[arg-type]
        except odd as error:
            raise damaged(str(error)) from None
        except OSError as error:
            if error.errno is None:  # what gzip raises for bytes that are none of its own, and a wrong checksum
                raise damaged(str(error)) from None
            if error.errno in tree.FULL:
                raise refused("the disk of the cache is full") from None
            raise tree.Fault("failed", "the archive could not be unpacked: " + tree.reason(error)) from None

    def _members(self, stream: _Bounded) -> None:
        tar = tarfile.TarFile(fileobj=stream)  # type: ignore[arg-type]
        for number in range(MOST):
            stream.left = _HEADER
            info = tar.next()
            if info is None:
                if not number:
                    raise damaged("there is nothing in it")
                if not stream.is_at_end():
                    raise damaged("a header of it can't be read")
                return
            tar.members = []  # type: ignore[attr-defined]  # a million would take a gigabyte
            if not (info.isreg() or info.isdir()) or info.issparse() or tar.pax_headers:
                raise not_taken(info.name, "is neither a plain file nor a folder")
            if not 0 <= info.size < _BIGGEST:
                raise damaged("a file of it has an impossible size")
            if number:
                self._take(stream, info)
            else:
                self._check_head(stream, info)
        raise refused("the archive holds more than " + str(MOST) + " files")

    def _check_head(self, stream: _Bounded, info: tarfile.TarInfo) -> None:
        if info.name != HEAD or info.size >= 100_000:
            raise refused("this is not an archive that `envgen cache save` wrote")
        try:
            head = json.loads(stream.take(info.size))
        except (ValueError, RecursionError):
            raise damaged("its first member is not JSON") from None
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise tree.Fault("refused", "the archive is of another format, by another release of envgen")
        if head.get("key") != (self.request.get("key") or "") and not self.request.get("force"):
            raise tree.Fault("refused", "the archive is of another environment; --force takes it anyway")
        if head.get("root") != self.root:
            there = tree.short(str(head.get("root")))
            self.problems.append("saved from " + there + ": FlashInfer from 0.6.1 on has this path in its build files, "
                                 "and will compile again")  # fmt: skip

    def _take(self, stream: _Bounded, info: tarfile.TarInfo) -> None:
        why = why_not(info.name)
        if why:
            raise not_taken(info.name, why)
        found = MODULE.match(info.name + "/" * info.isdir())
        if found and found.group(1) != "tmp":
            self.modules.add(found.group())
        *folders, name = ["new", *info.name.split("/")]
        try:
            with tree.below(self.stage, [*folders, name] if info.isdir() else folders, enter) as fd:
                if info.isreg():
                    self._write(stream, info, name, fd)
        except NotADirectoryError:
            raise not_taken(info.name, "is a file in one place and a folder in another") from None

    def _write(self, stream: _Bounded, info: tarfile.TarInfo, name: str, folder: int) -> None:
        when = nanoseconds(info.pax_headers.get("mtime", str(int(info.mtime))))
        self.room -= info.size
        if self.room < 0:
            raise refused("the archive holds more than the disk has room for")
        try:
            out = os.open(name, tree.NEW, 0o644 | (info.mode & 0o111), dir_fd=folder)
        except FileExistsError:
            raise not_taken(info.name, "is in it twice") from None
        with os.fdopen(out, "wb") as file:
            for start in range(0, info.size, BLOCK):
                file.write(stream.take(min(BLOCK, info.size - start)))
            file.flush()
            own_as(out, self.stage)
            os.utime(out, ns=(when, when))
        self.files += 1
        self.bytes += info.size


def nanoseconds(text: str) -> int:
    """The time of an extended header, which ``tarfile`` rounds; Fault for what no file of a cache has."""
    found = _TIME.match(text)
    if found is None:
        raise damaged("a file of it has an impossible time")
    return int(found[1]) * 10**9 + int(((found[2] or "") + "000000000")[:9])


def _place(root: str, root_fd: int, stage: int, request: dict[str, Any]) -> list[str]:
    """Move what was unpacked to where it belongs, under FlashInfer's locks; the modules that had to go for it."""
    with tree.below(stage, ["new"], enter) as new, tree.below(
        stage, ["old"], enter
    ) as old, contextlib.ExitStack() as stack:
        versions = set(os.listdir(new))
        cache = open_cache(root)
        try:
            links = [name for name in versions if tree.kind_of(name, root_fd) == "link"]
            if links:
                raise refused(links[0] + " in the cache is a link")
            there = modules_of(stack.enter_context(cache)) if cache is not None else []
            there = [(shelf, names) for shelf, names in there if shelf.version in versions]
            replaced = [shelf.shown + "/" + name for shelf, names in there for name in names]
            if replaced and not request.get("replace"):
                what = "%d modules of the same version are there already, %s first" % (len(replaced), replaced[0])
                raise tree.Fault("refused", what + "; --replace puts those of the archive in their place")
            stack.callback(Hold(there).release)
            _swap(new, root_fd, old, "")
            return replaced
        except OSError as error:
            raise tree.Fault(
                "failed", "not everything could be placed: " + tree.reason(error) + "; load again"
            ) from None


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
            continue  # gates may run here
        if _is_merged(path + name) and tree.kind_of(name, source) == "folder":
            with tree.opened(name, source) as inner, tree.below(target, [name], enter) as there:
                _swap(inner, there, old, path + name + "/")
            continue
        is_there = tree.kind_of(name, target) != "gone"
        if is_there and name in BESIDE and not path:
            continue
        aside = "%d-%s" % (len(os.listdir(old)), name[:100])
        if is_there:
            os.rename(name, aside, src_dir_fd=target, dst_dir_fd=old)
        try:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        except OSError:
            if is_there:
                os.rename(aside, name, src_dir_fd=old, dst_dir_fd=target)
            raise
