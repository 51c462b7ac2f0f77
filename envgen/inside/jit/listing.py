"""Operation ``list``: every module with what it takes, how old it is, and whether a process builds it now."""

from __future__ import annotations

import os
from typing import Tuple

from envgen.inside.jit.choose import Choice, Survey, asked, choose
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.judge import Judge
from envgen.inside.jit.layout import Entry, Shelf, root_of
from envgen.inside.jit.locks import Held, acquire_inside, probe
from envgen.inside.jit.package import package_of
from envgen.inside.jit.procs import holders
from envgen.inside.jit.recipe import library_of
from envgen.inside.jit.sweep import BATCH, leftovers
from envgen.inside.jit.tree import FOLDER, GONE, LISTED, Measure, measure, measure_path, note, reason

Identity = Tuple[int, int]  # device and inode


def run(request: dict[str, object]) -> dict[str, object]:
    """List the modules that the request's patterns, version and archs choose (none: all)."""
    root = root_of(request)
    answer: dict[str, object] = {"root": root, "exists": True, "modules": [], "others": [], "building": [],
                                 "leftovers": {"count": 0, "bytes": 0}, "problems": []}  # fmt: skip
    if not request.get("patterns") and not os.path.exists(root):
        return {**answer, "exists": False}
    cache, patterns = asked(request)
    try:
        survey = Survey(cache)
        choice = choose(survey, patterns, not patterns)
        held: list[tuple[dict[str, object], Identity]] = []
        modules: list[dict[str, object]] = []
        building: list[dict[str, object]] = []
        for shelf, entries in choice.chosen:
            locks = _Locks(shelf, cache.problems)
            if len(modules) + len(entries) > LISTED:
                left = len(modules) + len(entries) - LISTED
                note(cache.problems, shelf.shown + ": " + str(left) + " more modules; name those that you want")
            for entry in entries[: LISTED - len(modules)]:
                described = _describe(shelf, entry, cache.problems)
                if described is not None:
                    modules.append(described)
                    locks.add(entry.name + ".lock", described, held)
            batch: dict[str, object] = {"version": shelf.version, "arch": shelf.arch}
            locks.add(BATCH, batch, held)
            locks.close()
            if batch["locked"]:
                building.append(batch)
        judge = Judge(cache, request, package_of(request))
        for described in modules:
            _judge(judge, choice, described)
        known = holders(sorted({identity for _, identity in held})) if held else {}
        for described, identity in held:
            described["holders"] = known[identity]
        answer.update(modules=modules, building=building)
        if not patterns and not request.get("version") and request.get("archs") is None:
            answer["others"] = _beside(cache.fd, cache.beside)
        answer.update(leftovers=leftovers(cache, survey.trash), problems=cache.problems)
        return answer
    finally:
        cache.close()


def _judge(judge: Judge, choice: Choice, described: dict[str, object]) -> None:
    """Add the state. The reasons stay behind: `why` tells them."""
    place = (described["version"], described["arch"])
    shelf = next(shelf for shelf, _ in choice.chosen if (shelf.version, shelf.arch) == place)
    verdict = judge.judge(shelf, str(described["name"]), str(described["kind"]),
                          built=bool(described["built"]), locked=described["locked"] is True)  # fmt: skip
    described.update(state=verdict.state, guess=verdict.guess,
                     causes=sorted({str(reason["kind"]) for reason in verdict.reasons}))  # fmt: skip


def kind_from(name: str, names: list[str]) -> str:
    """``ninja`` (has a build.ninja), ``cute_dsl`` (from 0.6.16: meta.json, objects) or ``other`` (kda_ptx, ...)."""
    if "build.ninja" in names:
        return "ninja"
    if "meta.json" in names or name.endswith("_cute_dsl"):
        return "cute_dsl"
    return "other"


def looked_at(shelf: Shelf, name: str) -> tuple[str, bool, bool]:
    """Its kind, whether its library is there, whether it is being built."""
    kind, built = "other", False
    try:
        fd = os.open(name, FOLDER, dir_fd=shelf.fd)
        try:
            kind = kind_from(name, os.listdir(fd))
            built = library_of(name, fd) is not None
        finally:
            os.close(fd)
        acquire_inside("tmp/" + name + ".lock", shelf.fd, name, dry=True)
    except Held:
        return kind, built, True
    except (OSError, Fault):
        pass  # what can't be looked at is not being built
    return kind, built, False


def _describe(shelf: Shelf, entry: Entry, problems: list[str]) -> dict[str, object] | None:
    described: dict[str, object] = {
        "version": shelf.version, "arch": shelf.arch, "name": entry.name, "kind": "link", "bytes": 0, "files": 0,
        "objects": 0, "built": False, "modified": 0.0, "locked": False, "holders": [], "unread": 0,
    }  # fmt: skip
    if entry.kind == "link":
        return described
    total = Measure()
    kind = "other"
    try:
        fd = os.open(entry.name, FOLDER, dir_fd=shelf.fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        note(problems, shelf.shown + "/" + entry.name + ": " + reason(error))
        described["unread"] = 1
        described["kind"] = kind
        return described
    try:
        measure(fd, total)
        kind = kind_from(entry.name, os.listdir(fd))
    finally:
        os.close(fd)
    library = [mtime for name, _, mtime in total.libraries if name == entry.name + ".so"]
    for text in total.unread:
        note(problems, shelf.shown + "/" + entry.name + "/" + text)
    described.update(
        kind=kind, bytes=total.bytes, files=total.files, objects=total.objects, unread=len(total.unread),
        built=bool(library), modified=library[0] if library else total.newest,
    )  # fmt: skip
    return described


class _Locks:
    """The lock files of one shelf: read once, for most modules of an old cache have one, and none is held."""

    def __init__(self, shelf: Shelf, problems: list[str]) -> None:
        self.fd = -1
        self.shown = shelf.shown + "/tmp"
        self.problems = problems
        self.names: set[str] = set()
        try:
            self.fd = os.open("tmp", FOLDER, dir_fd=shelf.fd)
            self.names = set(os.listdir(self.fd))
        except OSError as error:
            if error.errno not in GONE:
                problems.append(self.shown + ": " + reason(error))

    def add(self, name: str, described: dict[str, object], held: list[tuple[dict[str, object], Identity]]) -> None:
        """Note in ``described`` whether the lock ``name`` is held; None = it can't be told."""
        described.update(locked=False, holders=[])
        if name not in self.names:
            return
        try:
            identity = probe(name, self.fd)
        except OSError as error:
            described["locked"] = None
            self.problems.append(self.shown + "/" + name + ": " + reason(error))
            return
        if identity is not None:
            described.update(locked=True, lock=list(identity))
            held.append((described, identity))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _beside(root_fd: int, names: list[str]) -> list[dict[str, object]]:
    found = []
    for name in names:
        measured = measure_path(name, root_fd)
        if measured is not None:
            found.append({"name": name, "bytes": measured.bytes, "files": measured.files})
    return found
