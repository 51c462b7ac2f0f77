"""What a rehearsal found: one verdict a patch, with its hunks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How a patch and a source stand to each other."""

    APPLIES = "applies"
    OFFSET = "applies with offset"
    FUZZY = "fuzzy"
    ALREADY = "already applied"
    PARTLY = "partly applied"
    CONFLICT = "conflict"
    OUT_OF_RANGE = "out of range"

    @property
    def fits(self) -> bool:
        """Whether a build takes it as it is: at any place, but with all of its context."""
        return self in (State.APPLIES, State.OFFSET)


@dataclass(frozen=True)
class HunkVerdict:
    """One hunk. ``line`` is its line in the patch; ``offset`` how many lines off it was found."""

    file: str
    number: int
    line: int
    heading: str
    state: State
    offset: int = 0
    expected: tuple[str, ...] = ()  # the lines that the patch wants to find
    actual: tuple[str, ...] = ()  # the most similar lines that the source has
    actual_at: int = 0  # the line number of the first of them; 0: nothing similar
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """One patch against one source. ``measured`` is how it would stand if its range did not matter."""

    patch: str
    path: str
    applies_to: str
    state: State
    measured: State | None
    hunks: tuple[HunkVerdict, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        """False where a build would stop."""
        return self.state.fits or self.state is State.OUT_OF_RANGE


@dataclass(frozen=True)
class Rehearsal:
    """A whole series against one source."""

    series: str
    tree: str
    version: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """False where a build would stop."""
        return all(verdict.ok for verdict in self.verdicts)
