"""Operation ``clear``: plan, guard, act, in one call.

All locks are taken before anything is changed, so a held one leaves everything as it was. What goes is first renamed
into ``cached_ops/.envgen-trash-<random>`` (generated sources, then the module's folder) and deleted from there: a kill
leaves the old module or none, and the next clear deletes the trash.

Up to 0.6.0 all modules share ``cached_ops/.ninja_log`` and ``.ninja_deps``. They stay as they are: an output that is
not there is dirty for ninja whatever the log says, so the module is compiled again, and the others keep their entries.
"""

from __future__ import annotations

import os

from envgen.inside.jit.choose import Choice, Survey, choose
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.hold import held_fault, raise_limit
from envgen.inside.jit.layout import TRASH, Cache, Shelf, open_cache, root_of
from envgen.inside.jit.locks import Held, acquire, acquire_inside, lock_folder, own_as, probe
from envgen.inside.jit.names import check_request
from envgen.inside.jit.plan import Generated, Target, check_mounts, generated_of, open_generated, target_of
from envgen.inside.jit.procs import loaded
from envgen.inside.jit.sweep import BATCH, leftovers, sweep
from envgen.inside.jit.tree import FOLDER, GONE, LISTED, note, reason, remove


def run(request: dict[str, object]) -> dict[str, object]:
    """Clear what the patterns choose; ``all`` for everything, ``dry_run`` to change nothing."""
    patterns: list[str] = list(request.get("patterns") or ())  # type: ignore[call-overload]
    archs: list[str] | None = request.get("archs")  # type: ignore[assignment]
    version = str(request.get("version") or "")
    check_request(patterns, version, archs)
    root = root_of(request)
    cache = open_cache(root, version, archs)
    if cache is None:
        raise Fault("not_found", "there is no cache at " + root, missing=patterns, names=[], links=[], places=[])
    try:
        dry = bool(request.get("dry_run"))
        survey = Survey(cache)
        try:
            causes = request.get("causes")
            choice = choose(survey, patterns, bool(request.get("all")) or (isinstance(causes, dict) and not patterns))
        except Fault as fault:
            # Asked again after a kill, the module may be gone already; what was left of it goes all the same.
            if fault.kind == "not_found" and survey.trash and not dry:
                fault.data["leftovers"] = sweep(cache, survey.trash, set(), [])
            raise
        why: dict[str, str] = {}
        guesses: list[str] = []
        if isinstance(causes, dict):
            from envgen.inside.jit.causes import Causes  # most clears name their module and need none of it

            narrowed = Causes(cache, request, causes)
            choice = narrowed.narrow(choice)
            why, guesses = narrowed.why, narrowed.guesses
        job = Job(cache, choice, survey.trash, root, dry=dry)
        job.why = why
        try:
            return {**job.run(), "guesses": guesses}
        finally:
            job.release()
    finally:
        cache.close()


class Job:
    """One clear. The locks that it took are in ``locks`` and ``batches``, as open descriptors."""

    def __init__(self, cache: Cache, choice: Choice, trash: list[tuple[Shelf, str]], root: str, *, dry: bool) -> None:
        self.cache = cache
        self.choice = choice
        self.trash = trash
        self.root = root
        self.dry = dry
        self.locks: list[int] = []
        self.batches: list[int] = []
        self.held: list[tuple[str, tuple[int, int]]] = []
        self.errors: list[str] = []
        self.swept = {"count": 0, "bytes": 0}
        self.why: dict[str, str] = {}  # the cause for which a module goes, where one was asked for

    def run(self) -> dict[str, object]:
        raise_limit(sum(len(entries) for _, entries in self.choice.chosen))
        self._guard_links()
        for shelf, entries in self.choice.chosen:
            self._lock(shelf, [entry.name for entry in entries])
        if self.held:
            raise held_fault(self.held)
        # Only now, under the locks, is what stands in build.ninja final.
        targets = []
        vanished = []
        for shelf, entries in self.choice.chosen:
            for entry in entries:
                target = target_of(shelf, entry, self.root)
                if target is None:
                    vanished.append({"version": shelf.version, "arch": shelf.arch, "name": entry.name})
                else:
                    targets.append(target)
        go, kept = generated_of(targets, self.choice.others)
        check_mounts([item.shown for item in targets] + [item.shown for item in go], self.cache.root)
        for target in targets:
            self._lock_inside(target)
        if self.held:
            raise held_fault(self.held)
        inodes = {inode: target.name for target in targets for _, inode, _ in target.measure.libraries}
        users, unseen = loaded(inodes)
        if self.dry:
            self.swept = leftovers(self.cache, self.trash)
        else:
            self._act(targets, go)
        return self._answer(targets, vanished, go, kept, users, unseen)

    def _guard_links(self) -> None:
        chosen = [(shelf, entry) for shelf, entries in self.choice.chosen for entry in entries]
        links = [shelf.shown + "/" + entry.name for shelf, entry in chosen if entry.kind == "link"]
        if links:
            raise Fault("refused", ", ".join(links) + ": a link, not a module; nothing was touched")

    def _lock(self, shelf: Shelf, names: list[str]) -> None:
        """Take (dry run: test) the batch lock and the locks of these modules; note those that others hold."""
        folder = lock_folder(shelf.fd, create=not self.dry)
        if folder is None:
            return
        try:
            for name in [BATCH, *(name + ".lock" for name in names)]:
                shown = shelf.shown + "/tmp/" + name
                try:
                    if self.dry:
                        identity = probe(name, folder)
                        if identity is not None:
                            raise Held(*identity)
                    else:
                        (self.batches if name == BATCH else self.locks).append(acquire(name, folder, shown))
                except Held as held:
                    self.held.append((shown, (held.device, held.inode)))
                except OSError as error:
                    raise Fault("refused", "the lock " + shown + " can't be tested: " + reason(error)) from None
        finally:
            os.close(folder)

    def _lock_inside(self, target: Target) -> None:
        for path in target.measure.locks:
            shown = target.shown + "/" + path
            try:
                fd = acquire_inside(target.name + "/" + path, target.shelf.fd, shown, dry=self.dry)
                self.locks += [] if fd is None else [fd]
            except Held as held:
                self.held.append((shown, (held.device, held.inode)))

    def _act(self, targets: list[Target], go: list[Generated]) -> None:
        """Rename everything away, shelf by shelf; let the builders in again; delete."""
        trash: list[tuple[Shelf, str]] = []
        for shelf, _ in self.choice.chosen:
            mine = [target for target in targets if target.shelf is shelf]
            if mine:
                trash.append((shelf, self._rename(shelf, mine, [item for item in go if item.shelf is shelf])))
        for fd in self.locks:
            os.close(fd)
        self.locks = []
        for shelf, name in trash:
            remove(name, shelf.fd, self.cache.device, self.errors, shelf.shown + "/" + name)
        locked = {shelf.fd for shelf, _ in self.choice.chosen}
        self.swept = sweep(self.cache, self.trash, locked, self.errors)

    def _rename(self, shelf: Shelf, targets: list[Target], go: list[Generated]) -> str:
        """Move the generated paths, then the modules, into a new trash folder of the shelf."""
        name = TRASH + os.urandom(8).hex()
        try:
            os.mkdir(name, 0o700, dir_fd=shelf.fd)
            trash = os.open(name, FOLDER, dir_fd=shelf.fd)
        except OSError as error:
            raise Fault("refused", shelf.shown + " can't be changed: " + reason(error)) from None
        try:
            own_as(trash, shelf.fd)
            for number, item in enumerate(go):
                place = open_generated(item)
                if place is None:
                    continue
                try:
                    item.gone = self._move(place[1], place[0], "generated-" + str(number), trash, item.shown)
                finally:
                    os.close(place[0])
            for number, target in enumerate(targets):
                target.gone = self._move(target.name, shelf.fd, "module-" + str(number), trash, target.shown)
        finally:
            os.close(trash)
        return name

    def _move(self, name: str, source: int, new: str, trash: int, shown: str) -> bool:
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=trash)
        except OSError as error:
            if error.errno not in GONE:
                self.errors.append(shown + ": " + reason(error))
                return False
        return True

    def _answer(self, targets: list[Target], vanished: list[dict[str, str]], go: list[Generated], kept: list[Generated],
                users: list[dict[str, object]], unseen: int) -> dict[str, object]:  # fmt: skip
        if len(targets) > LISTED:
            note(self.cache.problems, "not listed here: " + str(len(targets) - LISTED) + " more modules")
        freed = sum(item.measure.bytes for item in targets if item.gone or self.dry)
        freed += sum(item.measure.bytes for item in go if item.gone or self.dry)
        return {
            "root": self.root,
            "dry_run": self.dry,
            "modules": [{"version": t.shelf.version, "arch": t.shelf.arch, "name": t.name, "bytes": t.measure.bytes,
                         "files": t.measure.files, "damaged": t.damaged, "outside": t.outside[:20], "gone": t.gone,
                         "why": self.why.get(t.shown, ""),
                         "libraries": [inode for _, inode, _ in t.measure.libraries]} for t in targets[:LISTED]],
            "vanished": vanished[:LISTED],
            "generated": [{"path": g.shown, "bytes": g.measure.bytes, "files": g.measure.files, "modules": g.modules,
                           "gone": g.gone}
                          for g in go[:LISTED]],
            "kept": [{"path": g.shown, "modules": g.modules, "kept_for": g.kept_for} for g in kept[:LISTED]],
            "leftovers": self.swept,
            "freed": freed + (0 if self.dry else self.swept["bytes"]),
            "users": users,
            "unseen": unseen,
            "problems": self.cache.problems,
            "errors": self.errors,
        }  # fmt: skip

    def release(self) -> None:
        """Give all locks back. Closing is releasing; the files stay."""
        for fd in self.locks + self.batches:
            os.close(fd)
        self.locks = []
        self.batches = []
