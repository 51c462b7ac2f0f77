"""What belongs to a module: its folder, and the generated sources that its build.ninja compiles.

``generated/<module>`` is not a rule: fused_moe_120 compiles ``cutlass_instantiations/120``, silu_and_mul one file. And
stale ``*.generated.cu`` are globbed again by the next build, so the whole folder goes, not only what is named.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import List

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Entry, Shelf
from envgen.inside.jit.ninja import parse, quote
from envgen.inside.jit.tree import (
    GONE,
    LISTED,
    Measure,
    descend,
    kind_of,
    measure,
    measure_path,
    opened,
    read_file,
    reason,
)

# Folders of ``generated`` that hold one folder per module or arch rather than belonging to one module.
GROUPS = ("cutlass_instantiations", "trtllm_export")


@dataclass
class Target:
    """One module that will go."""

    shelf: Shelf
    name: str
    measure: Measure = field(default_factory=Measure)
    names: List[str] = field(default_factory=list)  # generated paths, relative to generated/
    damaged: bool = False
    gone: bool = False

    @property
    def shown(self) -> str:
        return self.shelf.shown + "/" + self.name


@dataclass
class Generated:
    """One generated path that will go (or is kept, because other modules still compile it)."""

    shelf: Shelf
    path: str
    modules: List[str] = field(default_factory=list)
    kept_for: List[str] = field(default_factory=list)
    measure: Measure = field(default_factory=Measure)
    gone: bool = False

    @property
    def shown(self) -> str:
        return self.shelf.prefix + "/generated/" + self.path


def target_of(shelf: Shelf, entry: Entry, root: str) -> Target | None:
    """Look at one module; None when it vanished. Raises Fault for what must not be cleared."""
    shown = shelf.shown + "/" + entry.name
    target = Target(shelf, entry.name)
    try:
        with opened(entry.name, shelf.fd) as fd:
            measure(fd, target.measure)
            try:
                text = os.fsdecode(read_file("build.ninja", fd))
            except OSError as error:
                target.damaged = error.errno not in GONE
                return target
    except OSError as error:
        if error.errno in GONE:
            return None
        raise Fault("refused", shown + " can't be opened: " + reason(error)) from None
    edges, whole = parse(text)
    target.damaged = not whole
    parts = (generated_part(path, shelf, root) for edge in edges for path in edge.inputs)
    target.names = list(dict.fromkeys(part for part in parts if part is not None))[:LISTED]
    return target


def inside(path: str, shelf: Shelf, root: str) -> str | None:
    """What follows ``<root>/<version>[/<arch>]/generated/`` in ``path``, unchecked; None when it is elsewhere.

    FlashInfer writes resolved absolute paths. Seen from another mount the root differs, but its last two folders are
    always ``.cache/flashinfer``; the answer is only ever used below the open ``generated`` folder of this shelf.
    """
    marker = "/" + shelf.prefix + "/generated/"
    for head in (root, shelf.root):
        if path.startswith(head + marker):
            return path[len(head + marker) :]
    _, found, rest = path.partition("/.cache/flashinfer" + marker)
    return rest if found else None


def generated_part(path: str, shelf: Shelf, root: str) -> str | None:
    """The path below ``generated`` that goes with a source: a folder, or the file itself where it is at the top."""
    rest = inside(path, shelf, root)
    if rest is None:
        return None
    parts = rest.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    depth = 2 if parts[0] in GROUPS else 1
    return "/".join(parts[:depth])


def generated_of(targets: list[Target], others: dict[int, list[Entry]]) -> list[Generated]:
    """The generated paths of all targets: those that go, and those kept because a module that stays names them too."""
    found: dict[tuple[int, str], Generated] = {}
    for target in targets:
        for path in target.names:
            item = found.setdefault((target.shelf.fd, path), Generated(target.shelf, path))
            item.modules.append(target.name)
    for shelf_fd in {key[0] for key in found}:
        items = [item for key, item in found.items() if key[0] == shelf_fd]
        for entry in others.get(shelf_fd, ()):
            _note_sharing(shelf_fd, entry.name, items)
    return [item for item in found.values() if item.kept_for or _guard(item)]


def _note_sharing(shelf_fd: int, name: str, items: list[Generated]) -> None:
    """Does the module ``name`` compile any of these paths? In doubt (its build.ninja can't be read): yes.

    A search for bytes instead of a parse: 300 modules take 6 ms. A path in a comment counts as named; keeping is safe.
    """
    try:
        data = read_file(name + "/build.ninja", shelf_fd)
    except OSError as error:
        if error.errno not in GONE:
            for item in items:
                item.kept_for.append(name)
        return
    for item in items:
        for spelling in {item.path, quote(item.path)}:
            if _names(data, b"/generated/" + os.fsencode(spelling)):
                item.kept_for.append(name)
                break


def _names(data: bytes, needle: bytes) -> bool:
    """Is the path in the text as a whole: gen_gemm_sm120 is not named by gen_gemm_sm120_cutlass_fp4."""
    position = data.find(needle)
    while position >= 0:
        end = position + len(needle)
        if end == len(data) or data[end] in b"/ \t\r\n|:$":
            return True
        position = data.find(needle, position + 1)
    return False


def open_generated(item: Generated) -> tuple[int, str] | None:
    """The open folder that holds the path, and its name there; None when it is gone. Fault for a link on the way."""
    *folders, name = ("generated/" + item.path).split("/")
    try:
        return descend(item.shelf.base, folders), name
    except OSError as error:
        if error.errno in GONE:
            return None
        what = item.shelf.prefix + "/" + "/".join(folders)
        raise Fault("refused", what + " is not a plain folder (" + reason(error) + "); nothing was touched") from None


def _guard(item: Generated) -> bool:
    """Measure a generated path; False when it isn't there. Raises Fault when it is a link."""
    place = open_generated(item)
    if place is None:
        return False
    fd, name = place
    try:
        kind = kind_of(name, fd)
        if kind not in ("folder", "file", "gone"):
            raise Fault("refused", item.shown + " is a " + kind + ", not a folder or file; nothing was touched")
        measured = measure_path(name, fd)
        item.measure = measured or item.measure
        return measured is not None
    except OSError as error:
        raise Fault("refused", item.shown + " can't be looked at: " + reason(error)) from None
    finally:
        os.close(fd)


def check_mounts(paths: list[str], root: str, mountinfo: str = "/proc/self/mountinfo") -> None:
    """Refuse when something is mounted on or below a target: it is not the cache's own."""
    try:
        with open(mountinfo, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return  # without /proc the check of the device in tree.remove() remains
    points = set()
    for line in lines:
        fields = line.split(b" ")
        if len(fields) > 4:
            point = fields[4]
            for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                point = point.replace(code, character)
            points.add(os.fsdecode(point))
    for path in paths:
        whole = root + "/" + path
        for mounted in points:
            if mounted == whole or mounted.startswith(whole + "/"):
                raise Fault("refused", path + " has something mounted at " + mounted + "; nothing was touched")
