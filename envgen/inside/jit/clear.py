"""Operation ``clear``: plan, guard, act, in one call.

All locks are taken before anything is changed, so a held one leaves everything as it was. What goes is first renamed
into a folder at the top of the cache (generated sources, then the module's folder) and deleted from there: a kill
leaves the old module or none, and the next clear deletes the rest.

Up to 0.6.0 all modules share ``cached_ops/.ninja_log`` and ``.ninja_deps``. They stay as they are: an output that is
not there is dirty for ninja whatever the log says, so the module is compiled again, and the others keep their entries.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List

from envgen.inside.jit.causes import Causes
from envgen.inside.jit.choose import Choice, asked, choose
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.hold import Hold
from envgen.inside.jit.layout import Cache, root_of
from envgen.inside.jit.plan import Generated, Target, check_mounts, generated_of, open_generated, target_of
from envgen.inside.jit.procs import loaded
from envgen.inside.jit.sweep import leftovers, scratch, sweep
from envgen.inside.jit.tree import GONE, LISTED, note, reason


def run(request: dict[str, object]) -> dict[str, object]:
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
