"""Which change between two locks made a server fail, answer differently, or slow: halves what
differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from envgen import files
from envgen.app import lock as locks
from envgen.app.answers import GOOD
from envgen.app.measure import MeasureOptions, results_folder
from envgen.app.session import Candidate, Session
from envgen.app.stage import VariantSwitch
from envgen.app.sweep import measured_row
from envgen.app.upgrade import journal, paper
from envgen.app.upgrade.journal import Pending
from envgen.app.upgrade.trial import MATRIX, NOTHING, Row, lent_name
from envgen.bench import record
from envgen.binding import JsonDict, JsonObject
from envgen.engine import process
from envgen.errors import EnvgenError, LockError, RefusedError, UsageError
from envgen.lock.ask import Upgrade
from envgen.lock.model import FILE_NAME, Lock, PythonLock, changes, read_lock
from envgen.patches.wheel import released
from envgen.profile import tree
from envgen.text import progress

TAG = "-bisect"
START = "start"
ANSWERS = "answers"
COMMAND = "command"
SPEED = re.compile(r"(prefill|decode) *< *-(\d+(?:\.\d+)?) *%")
_CHANGES = re.compile(
    r"^Project-URL: *(?:change ?log|changes|release notes|history) *, *(https?://\S+)", re.I | re.M
)
Units = frozenset[str]  # the packages (and `base`, and sources from git) that are BAD's


@dataclass(frozen=True)
class Side:
    """A project file and its lock."""

    text: str
    lock: Lock


def side_of(session: Session, name: str) -> Side:
    """GOOD or BAD: a lock file, SOURCE==VERSION, or a git revision. UsageError."""
    project = session.loaded(local=False).project
    now = tree.file_text(project.file, project.file.name)
    if Path(name).is_file():
        return Side(now, read_lock(Path(name).absolute()))
    if "==" in name or "@" in name:
        made = paper.proposed(session, [name]).tried
        return Side(made.text, made.lock)
    with files.Scratch("bisect") as scratch:
        texts = []
        for path in (project.file.name, FILE_NAME):
            argv = ["git", "-C", str(project.root), "show", f"{name}:./{path}"]
            done = process.run(argv, check=False)
            if done.code:
                hint = "write a lock file, SOURCE==VERSION, or a git revision that has a lock"
                raise UsageError(f"{name!r} is no side of a bisection", hint=hint)
            file = Path(scratch) / path
            files.write(file, done.stdout)
            texts.append(file)
        return Side(tree.file_text(texts[0], texts[0].name), read_lock(texts[1]))


def _versions(lock: Lock, profile: str) -> dict[str, str]:
    """Unit -> what a lock says of it."""
    units = {}
    for name, image in lock.images.items():
        units[f"image {name}"] = image.digest
    for name, commit in lock.git.items():
        units[f"git {name}"] = commit.commit
    for python in lock.python.get(profile, {}).values():
        for pins in python.sets.values():
            units |= {pin.name: pin.version for pin in pins}
    return units


@dataclass
class Bisection:
    """``test``: start, answers, `decode < -5%`, or command (``argv``). ``rows``: what was tried."""

    session: Session
    service: str
    sides: tuple[Side, Side]
    test: str
    argv: Sequence[str] = ()
    build: Callable[[Session], None] = lambda _session: None
    rows: dict[Units, bool] = field(default_factory=dict)
    reference: Row | None = None  # GOOD's

    def __post_init__(self) -> None:
        self.profile = self.session.profile().name
        good, bad = self.sides
        before = _versions(good.lock, self.profile)
        after = _versions(bad.lock, self.profile)
        self.differing = dict[str, tuple[str, str]]()
        for one in changes(before, after):
            self.differing[one.name] = (one.before, one.after)
        root = self.session.loaded().project.root
        state = files.state_dir(root, "state")
        self.path = state / f"bisect-{self.profile}.json"
        differing = map(str, self.differing.items())
        self.key = [*differing, self.service, self.test, *self.argv]

    def run(self) -> Units:
        """The units that must be BAD's for the test to fail: one, or several that move together.
        RefusedError where GOOD fails, or the two sides do not differ in it.
        """
        if not self.differing:
            raise RefusedError("both sides lock the same")
        self._read()
        low = Units()
        high = Units(self.differing)
        with process.terminable(), self._stage() as stage:
            trouble = ""
            if self.is_bad(stage, low):
                trouble = f"GOOD fails in `{self.test}`, too: name one that does not"
            elif not self.is_bad(stage, high):
                trouble = f"GOOD and BAD do not differ in `{self.test}`, beyond its noise"
            while not trouble and (between := self._between(low, high)):
                if self.is_bad(stage, between):
                    high = between
                else:
                    low = between
        self.path.unlink(missing_ok=True)
        if trouble:
            raise RefusedError(trouble)
        return high - low

    def _between(self, low: Units, high: Units) -> Units | None:
        """A set of units between the two that the resolver takes, as close to the middle as there
        is one; None: the rest moves together.
        """
        left = sorted(high - low)
        for count in sorted(range(1, len(left)), key=lambda n: abs(n - len(left) / 2)):
            units = self._closed(low | Units(left[:count]))
            if units and low < units < high:
                return units
        return None

    # --- one step

    def mixed(self, units: Units) -> Session:
        """The session of GOOD's project with BAD's ``units``, as the resolver takes it."""
        good, bad = self.sides
        text = bad.text if units else good.text
        draft = paper.Draft(self.session, good.lock, text)
        sources = draft.made.profile(local=False).sources
        for name, source in sources.items():
            wheel = source.origin.wheel
            if wheel is not None and wheel.version:
                side = bad if wheel.name in units else good
                pins = _versions(side.lock, self.profile)
                draft.pin(name, pins.get(wheel.name, wheel.version))
        lock = Lock(
            images=_chosen(good.lock.images, bad.lock.images, units, "image "),
            git=_chosen(good.lock.git, bad.lock.git, units, "git "),
            python={**good.lock.python, self.profile: self._python(units)},
            models=good.lock.models,
        )
        # Their pins are no more than what the resolver prefers: it gives what fits together.
        wished = Candidate(draft.text, lock, TAG)
        made = self.session.with_(candidate=wished)
        profile = made.profile(local=False)
        outcome = locks.resolve(made, [profile], lock, Upgrade())
        if outcome.problems:
            loaded = made.loaded(local=False)
            problems = locks.problems_of(loaded, outcome.problems)
            raise LockError(problems=problems)
        resolved = Candidate(draft.text, outcome.lock, TAG)
        return made.with_(candidate=resolved)

    def _python(self, units: Units) -> dict[str, PythonLock]:
        """Each platform's packages: BAD's of ``units``, else GOOD's; to be resolved again."""
        good = self.sides[0].lock.python.get(self.profile, {})
        bad = self.sides[1].lock.python.get(self.profile, {})
        mixed = {}
        for platform in good.keys() & bad.keys():
            kept = good[platform].sets
            moved = bad[platform].sets
            sets = {}
            for step in {**kept, **moved}:
                pins = []
                for pin in kept.get(step, ()):
                    if pin.name not in units:
                        pins.append(pin)
                for pin in moved.get(step, ()):
                    if pin.name in units:
                        pins.append(pin)
                sets[step] = tuple(pins)
            mixed[platform] = replace(good[platform], asks="", sets=sets)
        return mixed

    def _closed(self, units: Units) -> Units | None:
        """``units`` and what must move with them; None if the resolver takes neither side's."""
        try:
            made = self.mixed(units).tried
        except EnvgenError:
            return None
        now = _versions(made.lock, self.profile)
        if any(now.get(name, "") not in both for name, both in self.differing.items()):
            return None
        return Units(one for one, (_, bad) in self.differing.items() if now.get(one, "") == bad)

    def is_bad(self, stage: VariantSwitch, units: Units) -> bool:
        """Whether the test fails with BAD's ``units``; tried once, whatever ends this command."""
        if units not in self.rows:
            made = self.mixed(units)
            self.build(made)
            self.rows[units] = self._fails(stage, made, units)
            self._save()
        word = "bad" if self.rows[units] else "good"
        progress(f"{word}: {len(units)} of {len(self.differing)} changes")
        return self.rows[units]

    def _fails(self, stage: VariantSwitch, made: Session, units: Units) -> bool:
        shown = made.with_(candidate=replace(made.tried, tag=""))

        def show() -> float:
            with lent_name(self.session, made, self.service):
                return stage.show(shown)

        if self.test in (START, COMMAND):
            try:
                show()
            except EnvgenError as error:
                progress(str(error))
                return True
            return bool(self.argv) and process.run(list(self.argv), check=False).code != 0
        row = self._row(shown, show)
        if not units:
            self.reference = row
        if row["cause"] and not row["verdict"]:
            return True
        assert self.reference is not None
        if self.test == ANSWERS:
            return row["verdict"] not in GOOD
        return self._is_slower(shown, row)

    def _row(self, shown: Session, show: Callable[[], float]) -> Row:
        """The measurements, against GOOD's answers."""
        asked = MeasureOptions(shown, self.service)
        reference = None
        if self.reference:
            folder = results_folder(self.session.file)
            reference = record.resolve(folder, str(self.reference["answers"]))
        matrix = MATRIX if SPEED.fullmatch(self.test) else None
        return measured_row(asked, "bisect", show, reference, matrix, True)

    def _is_slower(self, shown: Session, row: Row) -> bool:
        """Whether it is slower than GOOD, and more so than it differs from itself."""
        limit = SPEED.fullmatch(self.test)
        assert limit is not None
        assert self.reference is not None
        again = self._row(shown, lambda: 0.0)
        label = f"{limit[1]} t/s"
        speeds = [one["figures"].get(label) for one in (self.reference, row, again)]
        if None in speeds:
            raise UsageError(
                f"{self.test}: no {label} was measured", hint="pip.tools: [llama-benchy]"
            )
        good, first, second = speeds
        slowest = min(first, second)
        fastest = max(first, second)
        # More than it differs from itself, too.
        least = max(good * float(limit[2]) / 100, fastest - slowest)
        return bool(good - fastest > least)

    # --- what outlives a break

    @contextmanager
    def _stage(self) -> Iterator[VariantSwitch]:
        """Inside, the sides are shown in place of what runs, which runs again afterwards."""
        root = self.session.loaded().project.root
        over = True
        with journal.alone(root, self.profile):
            stage = VariantSwitch(self.session, self.service)
            earlier = journal.pending(root, self.profile)
            variant = stage.before.variant if stage.before else NOTHING
            if earlier:
                variant = earlier.services.get(self.service, NOTHING)
            stage.before = None if variant == NOTHING else self.session.with_(variant=variant)
            if not earlier:  # else one of the sides may run
                stage.now = stage.before
            trial = Pending("envgen bisect", "", {self.service: variant})
            journal.save(root, self.profile, trial, "", "")
            try:
                with stage:
                    yield stage
            except KeyboardInterrupt:
                over = False
                raise
            finally:
                if over:
                    journal.forget(root, self.profile)

    def _read(self) -> None:
        """What an interrupted bisection of the same has tried."""
        try:
            document = json.loads(files.read(self.path))
            if document["key"] == self.key:
                self.rows = {Units(names): bool(bad) for names, bad in document["rows"]}
                self.reference = document["reference"]
        except (OSError, ValueError, KeyError, TypeError):
            return

    def _save(self) -> None:
        rows = [[sorted(units), bad] for units, bad in self.rows.items()]
        document = {"key": self.key, "rows": rows, "reference": self.reference}
        root = self.session.loaded().project.root
        files.write(self.path, json.dumps(document).encode(), within=root)


def changelog(session: Session, name: str, version: str) -> str:
    """The address of a package's changelog, as its own metadata has it; "" without one."""
    pip = session.profile().pip
    try:
        wheel = released(name, version, (pip.index or "", *pip.extra_indexes), None)
        paths = [one for one in wheel.names if one.endswith("/METADATA")]
        text = b"".join(wheel.fetch(paths).values()).decode("utf-8", "replace")
    except EnvgenError:
        return ""
    address = _CHANGES.search(text)
    return address[1] if address else ""


def _chosen(good: JsonObject, bad: JsonObject, units: Units, prefix: str) -> JsonDict:
    """The entries of a lock, from the side of each."""
    return {
        key: (bad if f"{prefix}{key}" in units or key not in good else good)[key]
        for key in {**good, **bad}
    }
