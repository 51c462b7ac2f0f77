"""Operation ``clear``: plan, guard, act, in one call.

All locks are taken before anything is changed, so a held one leaves everything as it was. What goes is first renamed
into a folder at the top of the cache (generated sources, then the module's folder) and deleted from there: a kill
leaves the old module or none, and the next clear deletes the rest.

Up to 0.6.0 all modules share ``cached_ops/.ninja_log`` and ``.ninja_deps``. They stay as they are: an output that is
not there is dirty for ninja whatever the log says, so the module is compiled again, and the others keep their entries.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Dict, List

from envgen.inside.jit.judge import Judge, describe
from envgen.inside.jit.layout import Cache, Choice, Entry, Shelf, asked, choose, root_of
from envgen.inside.jit.libraries import package_of
from envgen.inside.jit.locks import Hold, leftovers, loaded, scratch, sweep
from envgen.inside.jit.ninja import parse, quote
from envgen.inside.jit.tree import (
    GONE,
    LISTED,
    Fault,
    Measure,
    descend,
    kind_of,
    measure,
    measure_path,
    note,
    opened,
    read_file,
    reason,
)

# Which of the chosen modules to clear for a cause: stale, foreign, older than, compiled from changed files.


class Causes:
    """What the request asks for. ``why`` holds, for each module taken, the words that say so."""

    def __init__(self, cache: Cache, request: dict[str, object], given: dict[str, object]) -> None:
        self.stale = bool(given.get("stale"))
        self.guessed = bool(given.get("guessed"))
        self.is_foreign = bool(given.get("foreign"))
        age = given.get("older_than")
        self.before = time.time() - age if isinstance(age, (int, float)) else None
        self.package = package_of(request)
        self.judge = Judge(cache, request, self.package)
        if self.is_foreign and not self.package.root and self.judge.archs is None:
            raise Fault("failed", "Python imports no FlashInfer here, so no module can be judged foreign")
        changed = given.get("changed")
        self.changed = [self.judge.files.real(str(path)) for path in changed] if isinstance(changed, list) else []
        self.why: dict[str, str] = {}
        self.guesses: list[str] = []

    def narrow(self, choices: list[Choice]) -> list[Choice]:
        """The choices without the modules that no cause speaks against."""
        for one in choices:
            words = {entry.name: self._reason(one.shelf, entry) for entry in one.entries}
            self.why.update({one.shelf.shown + "/" + name: why for name, why in words.items() if why})
            one.others += [entry for entry in one.entries if not words[entry.name]]
            one.entries = [entry for entry in one.entries if words[entry.name]]
        return [one for one in choices if one.entries]

    def _reason(self, shelf: Shelf, entry: Entry) -> str:
        if entry.kind != "folder":
            return ""  # a link is not a module
        module = describe(shelf, entry, self.judge.cache.problems)
        if module is None:
            return ""
        if self.before is not None and module.modified < self.before:
            return "older"
        if self.is_foreign and self.judge.foreign(shelf):
            return "foreign"
        path = self._changed(shelf, entry.name) if self.changed else ""
        if path:
            return "compiled from " + path
        if self.stale or self.guessed:
            self.judge.judge(shelf, module)
            if module.state != "stale":
                return ""
            if not module.guess:
                return "stale"
            if self.guessed:
                return "stale by a guess"
            self.guesses.append(entry.name)
        return ""

    def _changed(self, shelf: Shelf, name: str) -> str:
        """The first changed file, or file below a changed folder (a submodule), that it was compiled from."""
        for path in self.judge.reader.read(shelf, name).inputs:
            real = self.judge.files.real(path)
            if any(real == changed or real.startswith(changed + "/") for changed in self.changed):
                return path
        return ""


# What belongs to a module: its folder, and the generated sources that its build.ninja compiles.
#
# ``generated/<module>`` is not a rule: fused_moe_120 compiles ``cutlass_instantiations/120``, silu_and_mul one file.
# And stale ``*.generated.cu`` are globbed again by the next build, so the whole folder goes, not only what is named.

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


def run_clear(request: dict[str, object]) -> dict[str, object]:
    """Clear what the patterns choose; ``all`` for everything, ``dry_run`` to change nothing."""
    cache, patterns = asked(request)
    try:
        dry, causes = bool(request.get("dry_run")), request.get("causes")
        errors: list[str] = []
        # First: asked again after a kill, the module may be gone already.
        swept = leftovers(cache.fd) if dry else sweep(cache.fd, errors)
        choices = choose(cache, patterns, bool(request.get("all")) or (isinstance(causes, dict) and not patterns))
        why: dict[str, str] = {}
        guesses: list[str] = []
        if isinstance(causes, dict):
            narrowed = Causes(cache, request, causes)
            choices = narrowed.narrow(choices)
            why, guesses = narrowed.why, narrowed.guesses
        return {**Job(cache, choices, root_of(request), dry, why, errors, swept).run(), "guesses": guesses}
    finally:
        cache.close()


@dataclass
class Job:
    """One clear. ``why``: the cause for which a module goes, where one was asked for."""

    cache: Cache
    choices: List[Choice]
    root: str
    dry: bool
    why: Dict[str, str]
    errors: List[str]
    swept: Dict[str, int]

    def run(self) -> dict[str, object]:
        chosen = [(one.shelf, entry) for one in self.choices for entry in one.entries]
        links = [shelf.shown + "/" + entry.name for shelf, entry in chosen if entry.kind == "link"]
        if links:
            raise Fault("refused", ", ".join(links) + ": a link, not a module; nothing was touched")
        names = [(one.shelf, [entry.name for entry in one.entries]) for one in self.choices]
        hold = Hold(names, dry=self.dry)
        try:
            # Only now, under the locks, is what is in build.ninja final.
            looked = [target_of(shelf, entry, self.root) for shelf, entry in chosen]
            targets = [target for target in looked if target is not None]
            generated = generated_of(targets, {one.shelf.fd: one.others for one in self.choices})
            go = [item for item in generated if not item.kept_for]
            check_mounts([item.shown for item in targets] + [item.shown for item in go], self.cache.root)
            inodes = {inode: target.name for target in targets for _, inode, _ in target.measure.libraries}
            users, unseen = loaded(inodes)
            if targets and not self.dry:
                self._act(targets, go, hold)
        finally:
            hold.release()
        return self._answer(targets, generated, users, unseen)

    def _act(self, targets: list[Target], go: list[Generated], hold: Hold) -> None:
        """Rename everything away; let the builders in again; delete."""
        with scratch(self.cache.fd, self.errors) as work:
            for number, item in enumerate(go):
                place = open_generated(item)
                if place is not None:
                    item.gone = self._move(place[1], place[0], "generated-" + str(number), work, item.shown)
                    os.close(place[0])
            for number, target in enumerate(targets):
                target.gone = self._move(target.name, target.shelf.fd, "module-" + str(number), work, target.shown)
            hold.release_modules()

    def _move(self, name: str, source: int, new: str, work: int, shown: str) -> bool:
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=work)
        except OSError as error:
            if error.errno not in GONE:
                self.errors.append(shown + ": " + reason(error))
                return False
        return True

    def _answer(
        self, targets: list[Target], generated: list[Generated], users: list[dict[str, object]], unseen: int
    ) -> dict[str, object]:
        if len(targets) > LISTED:
            note(self.cache.problems, "not listed here: " + str(len(targets) - LISTED) + " more modules")
        freed = sum(item.measure.bytes for item in targets if item.gone or self.dry)
        freed += sum(item.measure.bytes for item in generated if item.gone or self.dry)
        return {
            "root": self.root,
            "dry_run": self.dry,
            "modules": [{"version": t.shelf.version, "arch": t.shelf.arch, "name": t.name, "bytes": t.measure.bytes,
                         "files": t.measure.files, "damaged": t.damaged, "gone": t.gone,
                         "why": self.why.get(t.shown, ""),
                         "libraries": [inode for _, inode, _ in t.measure.libraries]} for t in targets[:LISTED]],
            "generated": [{"path": g.shown, "bytes": g.measure.bytes, "files": g.measure.files, "modules": g.modules,
                           "kept_for": g.kept_for, "gone": g.gone} for g in generated[:LISTED]],
            "leftovers": self.swept,
            "freed": freed + (0 if self.dry else self.swept["bytes"]),
            "users": users,
            "unseen": unseen,
            "problems": self.cache.problems,
            "errors": self.errors,
        }  # fmt: skip
