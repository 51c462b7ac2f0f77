"""Operation ``save``: all modules, what was generated for them and their baselines, as one archive."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile

from envgen.inside.jit.archive import END, FORMAT, HEAD, MOST, OURS, SHARED, Sum, Summed, time_text, why_not
from envgen.inside.jit.choose import Survey
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.hold import hold, release
from envgen.inside.jit.layout import Cache, Shelf, open_cache, root_of
from envgen.inside.jit.tree import FILE, FOLDER, FULL, GONE, note, reason, short


def run(request: dict[str, object]) -> dict[str, object]:
    """Write the archive to ``target``, a file that is not there yet, under the locks of all modules."""
    root = root_of(request)
    cache = open_cache(root, "", None)
    if cache is None:
        raise Fault("not_found", "there is no cache at " + root, missing=[], names=[], links=[], places=[])
    try:
        survey = Survey(cache)
        chosen = [(shelf, [e.name for e in entries if e.kind == "folder"]) for shelf, entries in survey.found]
        if not any(names for _, names in chosen):
            raise Fault("not_found", "the cache is empty", missing=[], names=[], links=[], places=[])
        taken = hold(chosen)
        try:
            writer = _Writer(cache, request)
            writer.write(root, chosen)
        finally:
            release(taken)
        return {"root": root, "modules": sum(len(names) for _, names in chosen), "files": writer.files,
                "bytes": writer.bytes, "problems": cache.problems, "kept": []}  # fmt: skip
    finally:
        cache.close()


class _Writer:
    """Adds folders by descriptor: no link is followed, and nothing but files and folders is written."""

    def __init__(self, cache: Cache, request: dict[str, object]) -> None:
        self.cache = cache
        self.request = request
        self.files = 0
        self.members = 0
        self.sum = Sum()
        self.bytes = 0

    def write(self, root: str, chosen: list[tuple[Shelf, list[str]]]) -> None:
        target = str(self.request["target"])
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as out:
                if self.request.get("compress"):
                    import gzip

                    # Libraries shrink to a third at any level; the lowest is five times as fast as the usual one.
                    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=out, mtime=0) as packed:
                        self._all(packed, root, chosen)
                else:
                    self._all(out, root, chosen)
                out.flush()
                os.fsync(out.fileno())
                owner = self.request.get("owner")
                if isinstance(owner, (list, tuple)):
                    os.fchown(out.fileno(), int(owner[0]), int(owner[1]))
        except OSError as error:
            kind = "refused" if error.errno in FULL else "failed"
            raise Fault(kind, "the archive can't be written: " + reason(error)) from None

    def _all(self, out: object, root: str, chosen: list[tuple[Shelf, list[str]]]) -> None:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            head = {"format": FORMAT, "root": root, "key": self.request.get("key") or "",
                    "made_of": self.request.get("made_of") or {}}  # fmt: skip
            self._text(tar, HEAD, json.dumps(head))
            for shelf, names in chosen:
                self._shelf(tar, shelf, names)
            self._baselines(tar)
            self._text(tar, END, self.sum.text())

    def _text(self, tar: tarfile.TarFile, name: str, text: str) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text), 0o644
        tar.addfile(info, io.BytesIO(text.encode("ascii")))

    def _shelf(self, tar: tarfile.TarFile, shelf: Shelf, names: list[str]) -> None:
        for name in names:
            self._folder(tar, shelf.shown + "/" + name, name, shelf.fd)
        for name in SHARED:
            self._file(tar, shelf.shown + "/" + name, name, shelf.fd)
        self._folder(tar, shelf.prefix + "/generated", "generated", shelf.base)

    def _baselines(self, tar: tarfile.TarFile) -> None:
        try:
            fd = os.open(OURS[0], FOLDER, dir_fd=self.cache.fd)
        except OSError:
            return
        try:
            self._folder(tar, "/".join(OURS), OURS[1], fd)
        finally:
            os.close(fd)

    def _left_out(self, shown: str, *, folder: bool) -> bool:
        """Leave out what ``load`` would refuse: what lies too deep, above all, or one odd name would spoil it all."""
        self.members += 1
        if self.members > MOST - 10:
            raise Fault("refused", "the cache holds more than " + str(MOST) + " files, too many for an archive")
        words = why_not(shown, folder=folder)
        if words:
            note(self.cache.problems, short(shown) + ": left out: " + words)
        return bool(words)

    def _folder(self, tar: tarfile.TarFile, shown: str, name: str, dir_fd: int) -> None:
        if self._left_out(shown, folder=True):
            return
        try:
            fd = os.open(name, FOLDER, dir_fd=dir_fd)
        except OSError as error:
            if error.errno not in GONE:
                note(self.cache.problems, shown + ": " + reason(error))
            return
        try:
            info = self._info(shown, os.fstat(fd))
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            with os.scandir(fd) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            for inner, is_folder in found:
                if is_folder:
                    self._folder(tar, shown + "/" + inner, inner, fd)
                else:
                    self._file(tar, shown + "/" + inner, inner, fd)
        finally:
            os.close(fd)

    def _file(self, tar: tarfile.TarFile, shown: str, name: str, dir_fd: int) -> None:
        if self._left_out(shown, folder=False):
            return
        try:
            fd = os.open(name, FILE, dir_fd=dir_fd)
        except OSError as error:
            if error.errno not in GONE:
                note(self.cache.problems, shown + ": left out: " + reason(error))
            return
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                note(self.cache.problems, shown + ": left out: is not a file")
                return
            info = self._info(shown, status)
            info.size = status.st_size
            self.sum.member(shown, status.st_mtime_ns, status.st_size)
            try:
                tar.addfile(info, Summed(file, self.sum))
            except OSError as error:
                if error.errno is not None:
                    raise
                raise Fault("failed", shown + " became shorter while it was read; save again") from None
            self.files += 1
            self.bytes += status.st_size

    def _info(self, shown: str, status: os.stat_result) -> tarfile.TarInfo:
        info = tarfile.TarInfo(shown)
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = status.st_mtime_ns // 10**9
        info.pax_headers = {"mtime": time_text(status.st_mtime_ns)}
        return info
