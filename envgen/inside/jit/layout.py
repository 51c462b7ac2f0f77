"""The layout of a cache: ``<root>/<version>[/<arch>]/cached_ops/<module>`` (FlashInfer 0.5.3 to
0.7.4).

Without a GPU and without FLASHINFER_CUDA_ARCH_LIST the arch folder is missing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Iterable

from envgen.inside.common import Doc
from envgen.inside.jit.tree import FOLDER, GONE, Fault, note, note_unless_gone, reason

OURS = ".envgen"  # beside the versions: records of envgen
WORK = ".envgen-work-"  # folders at the top of a cache for what is being deleted
# Other folders beside the versions: downloaded kernels, autotuner results (0.7).
BESIDE = ("autotune", "cubins")


@dataclass
class Shelf:
    """One ``cached_ops`` folder. ``base``: its parent, which also holds ``generated``; both are
    open descriptors.
    """

    root: str
    version: str
    arch: str
    base: int
    fd: int

    @property
    def shown(self) -> str:
        """Relative to the root, for messages."""
        return f"{self.prefix}/cached_ops"

    @property
    def prefix(self) -> str:
        """``<version>[/<arch>]``, relative to the root."""
        return "/".join(part for part in (self.version, self.arch) if part)

    @property
    def path(self) -> str:
        return f"{self.root}/{self.shown}"


@dataclass
class Shelves:
    """The root and all its shelves, closed at the end of a ``with``. ``problems``: what was left
    out, and why.
    """

    root: str
    fd: int
    shelves: list[Shelf] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __enter__(self) -> Shelves:
        return self

    def __exit__(self, *_: object) -> None:
        for shelf in self.shelves:
            os.close(shelf.fd)
            os.close(shelf.base)
        os.close(self.fd)


def root_of(request: Doc) -> str:
    return str(request["root"])


def open_cache(root: str, version: str = "", archs: list[str] | None = None) -> Shelves | None:
    """Open the root (which may be a link) and every ``cached_ops`` of this version and these archs,
    through no link; None without a root.
    """
    real = os.path.realpath(root)
    try:
        cache = Shelves(real, os.open(real, FOLDER))
    except OSError as error:
        if error.errno in GONE:
            return None
        raise Fault("failed", f"the cache {root} can't be opened: {reason(error)}") from None
    try:
        for name in _folders(cache, cache.fd, ""):
            if name not in BESIDE and (not version or name == version):
                _open_version(cache, name, archs)
    except BaseException:
        cache.__exit__()
        raise
    return cache


def _open_version(cache: Shelves, version: str, archs: list[str] | None) -> None:
    """Open the shelf of each arch, and the version's own where it was used without an arch."""
    fd = _open(cache, version, cache.fd, version)
    if fd is None:
        return
    try:
        for name in _folders(cache, fd, version):
            arch = "" if name == "cached_ops" else name
            if name == "generated" or (archs is not None and arch not in archs):
                continue
            shown = f"{version}/{arch}" if arch else version
            base = _open(cache, arch, fd, shown) if arch else os.dup(fd)
            if base is None:
                continue
            inner = _open(cache, "cached_ops", base, f"{shown}/cached_ops")
            if inner is None:
                os.close(base)
            else:
                cache.shelves.append(Shelf(cache.root, version, arch, base, inner))
    finally:
        os.close(fd)


def _open(cache: Shelves, name: str, dir_fd: int, shown: str) -> int | None:
    try:
        return os.open(name, FOLDER, dir_fd=dir_fd)
    except OSError as error:
        note_unless_gone(cache.problems, shown, error)
        return None


def _folders(cache: Shelves, fd: int, shown: str) -> list[str]:
    """The sorted folders in ``fd``. Links are not followed, but noted."""
    names = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_symlink():
                    note(
                        cache.problems,
                        f"{os.path.join(shown, entry.name)}: is a link; not followed",
                    )
                elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    names.append(entry.name)
    except OSError as error:
        note(cache.problems, f"{shown or '.'}: {reason(error)}")
    return sorted(names)


# Checks of names in a request; the host makes them, too.


def is_reserved(name: str) -> bool:
    """``tmp`` holds the locks; names with a leading dot are ninja's (.ninja_log) or envgen's."""
    return name == "tmp" or name.startswith(".")


def check_name(name: str, what: str) -> None:
    """Refuse what is not a single name inside the cache."""
    if not name:
        raise Fault("refused", f"an empty {what} names nothing")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise Fault("refused", f"{name!r} is a path, not a {what}")


def check_request(patterns: list[str], version: str, archs: list[str] | None) -> None:
    """Refuse a request that could lead out of the cache."""
    for pattern in patterns:
        check_name(pattern, "module")
        if is_reserved(pattern):
            raise Fault("refused", f"{pattern!r} is not a module, but a file of the cache itself")
    if version:
        check_name(version, "version")
    for arch in filter(None, archs or ()):
        check_name(arch, "arch")


# The modules of a request: exact names, globs, everything.


def entries_of(shelf: Shelf, problems: list[str]) -> dict[str, str]:
    """What is in ``cached_ops``, by name, and what it is: ``folder`` (a module), ``link`` or
    ``file``.
    """
    kinds = {}
    try:
        with os.scandir(shelf.fd) as entries:
            for entry in entries:
                if is_reserved(entry.name):
                    continue
                kind = "file"
                if entry.is_dir(follow_symlinks=False):
                    kind = "folder"
                elif entry.is_symlink():
                    kind = "link"
                kinds[entry.name] = kind
    except OSError as error:
        problems.append(f"{shelf.shown}: {reason(error)}")
    return dict(sorted(kinds.items()))


@dataclass
class Choice:
    """What was found in a shelf: the chosen entries, and all others (for generated files that are
    shared).
    """

    shelf: Shelf
    entries: dict[str, str]
    others: list[str]


def asked(request: Doc) -> Shelves:
    """The cache, opened as far as the request's version and archs go; Fault where there is none."""
    patterns = request.get("patterns") or []
    archs = request.get("archs")
    version = request.get("version") or ""
    check_request(patterns, version, archs)
    root = root_of(request)
    cache = open_cache(root, version, archs)
    if cache is None:
        raise Fault("not_found", f"no cache at {root}", missing=patterns)
    return cache


def fits(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def choose(cache: Shelves, patterns: list[str], everything: bool) -> list[Choice]:
    """Resolve the patterns over all shelves. A name that exists is used as it is, even with ``[``
    or ``*`` in it.

    Raises ``not_found`` when any pattern matches nothing: half of what was asked for is not what
    was asked for.
    """
    shelves = [(shelf, entries_of(shelf, cache.problems)) for shelf in cache.shelves]
    folders = {name for _, entries in shelves for name, kind in entries.items() if kind != "file"}
    files = {name for _, entries in shelves for name in entries} - folders
    wanted = set(folders) if everything else set()
    missing = []
    for pattern in patterns:
        if pattern in files:
            raise Fault("refused", f"{pattern!r} is a file in cached_ops, not a module")
        matches = {pattern} & folders or {name for name in folders if fits(name, [pattern])}
        missing += [] if matches else [pattern]
        wanted |= matches
    if missing:
        raise Fault(
            "not_found",
            f"no module {', '.join(map(repr, missing))}",
            missing=missing,
            names=sorted(folders),
        )
    choices = []
    for shelf, entries in shelves:
        chosen = {name: kind for name, kind in entries.items() if kind != "file" and name in wanted}
        others = [name for name, kind in entries.items() if kind != "file" and name not in wanted]
        choices += [Choice(shelf, chosen, others)] if chosen else []
    return choices
