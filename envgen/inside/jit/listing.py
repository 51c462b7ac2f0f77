"""Operation ``list``: every module with what it takes, how old it is, and whether a process builds it now."""

from __future__ import annotations

import os

from envgen.inside.jit.choose import Choice, Survey, asked, choose
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.judge import Judge
from envgen.inside.jit.layout import Entry, Shelf, root_of
from envgen.inside.jit.locks import Held, acquire_inside
from envgen.inside.jit.package import package_of
from envgen.inside.jit.procs import holders
from envgen.inside.jit.recipe import library_of
from envgen.inside.jit.sweep import BATCH, leftovers
from envgen.inside.jit.tree import GONE, LISTED, Measure, measure, measure_path, note, opened, reason


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
        modules: list[dict[str, object]] = []
        building: list[dict[str, object]] = []
        for shelf, entries in choice.chosen:
            if len(modules) + len(entries) > LISTED:
                left = len(modules) + len(entries) - LISTED
                note(cache.problems, shelf.shown + ": " + str(left) + " more modules; name those that you want")
            for entry in entries[: LISTED - len(modules)]:
                described = _describe(shelf, entry, cache.problems)
                if described is not None:
                    modules.append(described)
                    _look_at_lock(shelf, entry.name + ".lock", described, cache.problems)
            batch: dict[str, object] = {"version": shelf.version, "arch": shelf.arch}
            _look_at_lock(shelf, BATCH, batch, cache.problems)
            if batch["locked"]:
                building.append(batch)
        judge = Judge(cache, request, package_of(request))
        for described in modules:
            _judge(judge, choice, described)
        held = [one for one in modules + building if one["locked"]]
        known = holders(sorted({(one["lock"][0], one["lock"][1]) for one in held}))  # type: ignore[index]
        for one in held:
            one["holders"] = known[one["lock"][0], one["lock"][1]]  # type: ignore[index]
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
        with opened(name, shelf.fd) as fd:
            kind = kind_from(name, os.listdir(fd))
            built = library_of(name, fd) is not None
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
    try:
        with opened(entry.name, shelf.fd) as fd:
            total = measure(fd, Measure())
            kind = kind_from(entry.name, os.listdir(fd))
    except OSError as error:
        if error.errno in GONE:
            return None
        note(problems, shelf.shown + "/" + entry.name + ": " + reason(error))
        return {**described, "unread": 1, "kind": "other"}
    for text in total.unread:
        note(problems, shelf.shown + "/" + entry.name + "/" + text)
    described.update(
        kind=kind, bytes=total.bytes, files=total.files, objects=total.objects, unread=len(total.unread),
        built=any(name == entry.name + ".so" for name, _, _ in total.libraries), modified=total.modified(entry.name),
    )  # fmt: skip
    return described


def _look_at_lock(shelf: Shelf, name: str, described: dict[str, object], problems: list[str]) -> None:
    """Note in ``described`` whether the lock ``name`` is held; None = it can't be told."""
    described.update(locked=False, holders=[])
    try:
        acquire_inside("tmp/" + name, shelf.fd, shelf.shown + "/tmp/" + name, dry=True)
    except Held as held:
        described.update(locked=True, lock=[held.device, held.inode])
    except Fault as fault:
        described["locked"] = None
        note(problems, fault.message)


def _beside(root_fd: int, names: list[str]) -> list[dict[str, object]]:
    found = []
    for name in names:
        measured = measure_path(name, root_fd)
        if measured is not None:
            found.append({"name": name, "bytes": measured.bytes, "files": measured.files})
    return found
