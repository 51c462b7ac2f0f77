"""How verdicts look: lines for people, keys for programs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from envgen.patches.dry_run import DryRun, HunkVerdict, State, Verdict
from envgen.text import counted, table, visible

_SHORT = {
    State.APPLIES: "applies",
    State.OFFSET: "offset",
    State.FUZZY: "FUZZY",
    State.ALREADY: "ALREADY IN",
    State.PARTLY: "PARTLY IN",
    State.CONFLICT: "CONFLICT",
}
_CURES = {
    State.FUZZY: "some context differs, and builds apply exactly: carry it over with `envgen patch refresh`",
    State.ALREADY: "the source has it: narrow its Applies-To, or remove it with `envgen patch drop`",
    State.PARTLY: "the source has a part of it: carry the rest over with `envgen patch refresh`",
    State.CONFLICT: "carry it over with `envgen patch refresh`, or narrow its Applies-To",
}


def lines(run: DryRun, *, only_bad: bool = False) -> list[str]:
    """One source: a line a patch, and both sides of what does not fit."""
    found = [] if only_bad else [f"{run.tree} ({run.series})"]
    for verdict in run.verdicts:
        if only_bad and verdict.ok:
            continue
        found.append(f"  {'ok ' if verdict.ok else 'BAD'} {verdict.patch}: {_sentence(verdict)}")
        if verdict.ok:
            continue
        if verdict.reason:
            found.append(f"        {visible(verdict.reason)}")
        for hunk in verdict.hunks:
            found += _hunk(verdict, hunk, run.tree)
        if verdict.state in _CURES:
            found.append(f"      hint: {_CURES[verdict.state]}")
    return found


def _sentence(verdict: Verdict) -> str:
    if verdict.state is State.OUT_OF_RANGE:
        return f"out of range, skipped (it is for {verdict.applies_to})"
    if verdict.state is State.OFFSET:
        return f"applies with offset ({', '.join(f'{h.offset:+d}' for h in verdict.hunks if h.offset)} lines)"
    return str(verdict.state.value)


def _hunk(verdict: Verdict, hunk: HunkVerdict, tree: str) -> list[str]:
    where = f"hunk {hunk.number} {hunk.heading}" if hunk.number else hunk.heading
    head = f"      {verdict.path}:{hunk.line}: {visible(hunk.file)}, {visible(where)}: {hunk.state.value}"
    found = [head + (f" ({visible(hunk.reason)})" if hunk.reason else "")]
    if hunk.state is not State.CONFLICT or not hunk.expected:
        return found
    if not hunk.actual:
        return found + [f"        -{visible(line, lines=True)}" for line in hunk.expected]
    found.append("        --- what the patch expects")
    found.append(f"        +++ what {tree} has from line {hunk.actual_at} on")
    compared = list(difflib.unified_diff(hunk.expected, hunk.actual, lineterm="", n=3))[2:]
    return found + [f"        {visible(line, lines=True)}" for line in compared]


# --- several releases -------------------------------------------------------------------------------------------------


def cell(verdict: Verdict) -> str:
    """One field of the matrix; in brackets where the patch is not for that release, and so is skipped."""
    short = _SHORT[verdict.measured] if verdict.measured else "?"
    return f"({short.lower()})" if verdict.state is State.OUT_OF_RANGE else short


def matrix(runs: Sequence[DryRun]) -> list[str]:
    """Releases down, patches across, and the last release that each patch fits."""
    names = [verdict.patch for verdict in runs[0].verdicts]
    found = [f"{runs[0].series}: {counted(len(names), 'patch', 'patches')}, {counted(len(runs), 'release')}"]
    found += [f"  [{number}] {name}" for number, name in enumerate(names, 1)]
    rows = [["", *(f"[{number}]" for number in range(1, len(names) + 1))]]
    rows += [[r.version, *(cell(verdict) for verdict in r.verdicts)] for r in runs]
    found += table(rows, indent="  ")
    if any(v.state is State.OUT_OF_RANGE for r in runs for v in r.verdicts):
        found.append("  (in brackets: not for that release, so a build leaves it out)")
    for number, (name, last) in enumerate(last_fits(runs).items(), 1):
        found.append(f"  [{number}] {name}: last fits {last}" if last else f"  [{number}] {name}: fits none of them")
    return found


def last_fits(runs: Sequence[DryRun]) -> dict[str, str]:
    """The newest of these releases that each patch fits, its range not considered."""
    found: dict[str, str] = {}
    for run in runs:
        for verdict in run.verdicts:
            fits = verdict.measured is not None and verdict.measured.fits
            found[verdict.patch] = run.version if fits else found.get(verdict.patch, "")
    return found


# --- for programs -----------------------------------------------------------------------------------------------------


def as_document(source: str, run: DryRun) -> dict[str, Any]:
    """One dry run with stable keys."""
    return {
        "source": source,
        "series": run.series,
        "tree": run.tree,
        "version": run.version or None,
        "ok": run.ok,
        "patches": [_verdict(verdict) for verdict in run.verdicts],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.patch,
        "path": verdict.path,
        "applies_to": verdict.applies_to or None,
        "state": verdict.state.value,
        "measured": verdict.measured.value if verdict.measured else None,
        "ok": verdict.ok,
        "reason": verdict.reason or None,
        "hunks": [
            {
                **{name: value for name, value in vars(hunk).items() if name not in ("number", "actual_at")},
                "hunk": hunk.number,
                "state": hunk.state.value,
                "expected": hunk.expected if hunk.state is State.CONFLICT else (),
                "actual_line": hunk.actual_at or None,
                "reason": hunk.reason or None,
            }
            for hunk in verdict.hunks
        ],
    }
