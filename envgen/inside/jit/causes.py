"""Which of the chosen modules to clear for a cause: stale, foreign, older than, compiled from changed files."""

from __future__ import annotations

import time

from envgen.inside.jit.choose import Choice
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.judge import Judge
from envgen.inside.jit.layout import Cache, Entry, Shelf
from envgen.inside.jit.module import describe
from envgen.inside.jit.package import package_of


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
