"""How verdicts look: lines for people, keys for programs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import click

from envgen.patches.verdict import HunkVerdict, Rehearsal, State, Verdict
from envgen.text import table, visible

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


def show(rehearsal: Rehearsal, *, err: bool = False, only_bad: bool = False) -> None:
    """One source: a line a patch, and both sides of what does not fit."""
    if not only_bad:
        click.echo(f"{rehearsal.tree} ({rehearsal.series})", err=err)
    for verdict in rehearsal.verdicts:
        if only_bad and verdict.ok:
            continue
        mark = "ok " if verdict.ok else "BAD"
        click.echo(f"  {mark} {verdict.patch}: {_sentence(verdict)}", err=err)
        if verdict.ok:
            continue
        if verdict.reason:
            click.echo(f"        {visible(verdict.reason)}", err=err)
        for hunk in verdict.hunks:
            _show_hunk(verdict, hunk, rehearsal.tree, err)
        if verdict.state in _CURES:
            click.echo(f"      hint: {_CURES[verdict.state]}", err=err)


def _sentence(verdict: Verdict) -> str:
    if verdict.state is State.OUT_OF_RANGE:
        return f"out of range, skipped (it is for {verdict.applies_to})"
    if verdict.state is State.OFFSET:
        return f"applies with offset ({', '.join(f'{h.offset:+d}' for h in verdict.hunks if h.offset)} lines)"
    return str(verdict.state.value)


def _show_hunk(verdict: Verdict, hunk: HunkVerdict, tree: str, err: bool) -> None:
    where = f"hunk {hunk.number} {hunk.heading}" if hunk.number else hunk.heading
    head = f"      {verdict.path}:{hunk.line}: {visible(hunk.file)}, {visible(where)}: {hunk.state.value}"
    click.echo(head + (f" ({visible(hunk.reason)})" if hunk.reason else ""), err=err)
    if hunk.state is not State.CONFLICT or not hunk.expected:
        return
    if not hunk.actual:
        for line in hunk.expected:
            click.echo(f"        -{visible(line, lines=True)}", err=err)
        return
    click.echo("        --- what the patch expects", err=err)
    click.echo(f"        +++ what {tree} has from line {hunk.actual_at} on", err=err)
    for line in list(difflib.unified_diff(hunk.expected, hunk.actual, lineterm="", n=3))[2:]:
        click.echo(f"        {visible(line, lines=True)}", err=err)


# --- several releases -------------------------------------------------------------------------------------------------


def cell(verdict: Verdict) -> str:
    """One field of the matrix; in brackets where the patch is not for that release, and so is skipped."""
    short = _SHORT[verdict.measured] if verdict.measured else "?"
    return f"({short.lower()})" if verdict.state is State.OUT_OF_RANGE else short


def show_matrix(rehearsals: Sequence[Rehearsal]) -> None:
    """Releases down, patches across, and the last release that each patch fits."""
    names = [verdict.patch for verdict in rehearsals[0].verdicts]
    click.echo(f"{rehearsals[0].series}: {len(names)} patches, {len(rehearsals)} releases")
    for number, name in enumerate(names, 1):
        click.echo(f"  [{number}] {name}")
    rows = [["", *(f"[{number}]" for number in range(1, len(names) + 1))]]
    rows += [[r.version, *(cell(verdict) for verdict in r.verdicts)] for r in rehearsals]
    click.echo("\n".join(table(rows, indent="  ")))
    if any(v.state is State.OUT_OF_RANGE for r in rehearsals for v in r.verdicts):
        click.echo("  (in brackets: not for that release, so a build leaves it out)")
    for number, (name, last) in enumerate(last_fits(rehearsals).items(), 1):
        click.echo(f"  [{number}] {name}: last fits {last}" if last else f"  [{number}] {name}: fits none of them")


def last_fits(rehearsals: Sequence[Rehearsal]) -> dict[str, str]:
    """The newest of these releases that each patch fits, its range not considered."""
    found: dict[str, str] = {}
    for rehearsal in rehearsals:
        for verdict in rehearsal.verdicts:
            fits = verdict.measured is not None and verdict.measured.fits
            found[verdict.patch] = rehearsal.version if fits else found.get(verdict.patch, "")
    return found


# --- for programs -----------------------------------------------------------------------------------------------------


def as_document(source: str, rehearsal: Rehearsal) -> dict[str, Any]:
    """One rehearsal with stable keys."""
    return {
        "source": source,
        "series": rehearsal.series,
        "tree": rehearsal.tree,
        "version": rehearsal.version or None,
        "ok": rehearsal.ok,
        "patches": [_verdict(verdict) for verdict in rehearsal.verdicts],
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
                "file": hunk.file,
                "hunk": hunk.number,
                "line": hunk.line,
                "heading": hunk.heading,
                "state": hunk.state.value,
                "offset": hunk.offset,
                "expected": list(hunk.expected) if hunk.state is State.CONFLICT else [],
                "actual": list(hunk.actual),
                "actual_line": hunk.actual_at or None,
                "reason": hunk.reason or None,
            }
            for hunk in verdict.hunks
        ],
    }
