"""The folder of records: listing without reading samples, finding a run by a short name, removing one."""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from envgen.errors import RefusedError, ResultsError, UsageError
from envgen.results.lines import Line
from envgen.results.model import INTERRUPTED, RUNNING, Record, frozen
from envgen.results.store import SUFFIX, is_held, load, open_record

# The end line is short: it is nearly always in the last piece of the file.
_TAIL = 16 * 1024
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")


@dataclass(frozen=True)
class Entry:
    """A run as the list shows it. ``damaged`` tells what is wrong with a file that can't be read; it has no times."""

    path: Path
    id: str
    kind: str
    outcome: str
    started: datetime | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    damaged: str = ""


@dataclass(frozen=True)
class Shelf:
    """What a folder holds: runs, oldest first, and the names of links, which are not followed."""

    folder: Path
    entries: tuple[Entry, ...]
    links: tuple[str, ...] = ()


def scan(folder: Path) -> Shelf:
    """All records in ``folder``; a folder that isn't there holds none. Raises ResultsError when it can't be read."""
    paths: list[str] = []
    links: list[str] = []
    try:
        with os.scandir(folder) as found:
            for item in found:
                if item.name.endswith(SUFFIX) and not item.name.startswith("."):
                    (links if item.is_symlink() else paths).append(item.name)
    except FileNotFoundError:
        return Shelf(folder, ())
    except OSError as error:
        raise ResultsError(f"can't read the results in {folder}: {error.strerror}") from error
    entries = [entry for name in sorted(paths) if (entry := _entry(folder / name)) is not None]
    entries.sort(key=lambda entry: (entry.started.timestamp() if entry.started else 0.0, entry.path.name))
    return Shelf(folder, tuple(entries), tuple(sorted(links)))


def _entry(path: Path) -> Entry | None:
    try:
        return head(path)
    except UsageError:  # removed since the folder was read
        return None
    except (ResultsError, OSError) as error:
        name = path.name.removesuffix(SUFFIX).split("-")
        text = str(error).partition("\n")[0]
        return Entry(path, name[-1], name[1] if len(name) == 3 else "?", "damaged", damaged=text)


def head(path: Path) -> Entry:
    """Start and end of a record, without its samples."""
    with os.fdopen(open_record(path), "rb", buffering=_TAIL) as file:
        held = is_held(file.fileno())
        first = file.readline()
        line = Line(path, 1, first)
        line.check_format()
        end = _end(path, file, len(first))
    return Entry(
        path=path,
        id=line.text("id"),
        kind=line.text("kind"),
        outcome=end.text("outcome") if end else RUNNING if held else INTERRUPTED,
        started=line.moment("started"),
        environment=frozen(line.mapping("environment")),
        summary=frozen(end.mapping("summary") if end else {}),
    )


def _end(path: Path, file: Any, begin: int) -> Line | None:
    """The end line, if the last whole line is one."""
    size = os.fstat(file.fileno()).st_size
    piece = _TAIL
    while size > begin:
        start = max(begin, size - piece)
        file.seek(start)
        lines = file.read(size - start).rstrip(b"\n").split(b"\n")
        if len(lines) > 1 or start == begin:
            try:
                line = Line(path, 0, lines[-1])
            except ResultsError:
                return None  # cut off; `show` says so
            return line if line.members.get("type") == "end" else None
        piece *= 8
    return None


def resolve(shelf: Shelf, name: str) -> Path:
    """The file of the run that ``name`` means: ``latest``, ``latest~2``, (the beginning of) an id, or a file.

    Raises UsageError when none or several are meant, and says which come near.
    """
    given = Path(name)
    if name.endswith(SUFFIX) or "/" in name:
        for path in (given, shelf.folder / name):
            if path.exists() or path.is_symlink():
                return path
    entries = shelf.entries
    if not entries:
        raise UsageError(f"there are no runs in {shelf.folder}", hint="--folder names another folder")
    if latest := _LATEST.fullmatch(name):
        back = int(latest[1] or 0)
        if back >= len(entries):
            raise UsageError(f"{name}: there are only {len(entries)} runs in {shelf.folder}")
        return entries[-1 - back].path
    exact = [entry for entry in entries if entry.id == name]
    meant = exact or [entry for entry in entries if name and entry.id.startswith(name)]
    if len(meant) == 1:
        return meant[0].path
    if meant:
        listed = ", ".join(f"{entry.id} ({entry.kind})" for entry in meant[:8])
        raise UsageError(f"{name!r} means {len(meant)} runs: {listed}", hint="give more letters of the id")
    near = difflib.get_close_matches(name, [entry.id for entry in entries] + ["latest"], 1, 0.6)
    raise UsageError(
        f"there is no run {name!r} in {shelf.folder}",
        hint=f"did you mean {near[0]!r}?" if near else "`envgen results list` shows the runs; `latest` is the newest",
    )


def read(shelf: Shelf, names: Sequence[str]) -> list[Record]:
    """The records that ``names`` mean."""
    return [load(resolve(shelf, name)) for name in names]


def removable(shelf: Shelf, name: str) -> Path:
    """The file that removing run ``name`` would delete. Raises RefusedError for what is outside, a link, or running."""
    path = resolve(shelf, name)
    if path.parent.resolve() != shelf.folder.resolve():
        raise RefusedError(f"refusing to remove {path}: it is not in {shelf.folder}")
    if path.is_symlink() or not stat.S_ISREG(path.lstat().st_mode):
        raise RefusedError(f"refusing to remove {path}: it is no regular file")
    descriptor = open_record(path)
    try:
        if is_held(descriptor):
            raise RefusedError(f"refusing to remove {path.name}: the run is still being written")
    finally:
        os.close(descriptor)
    return shelf.folder / path.name


def remove(shelf: Shelf, path: Path) -> None:
    """Delete one record of the folder: by its name inside the opened folder, so that no link can lead elsewhere."""
    try:
        folder = os.open(shelf.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.name, dir_fd=folder)
            finally:
                os.close(descriptor)
        finally:
            os.close(folder)
    except BlockingIOError:
        raise RefusedError(f"refusing to remove {path.name}: the run is still being written") from None
    except OSError as error:
        raise ResultsError(f"can't remove {path}: {error.strerror}") from error
