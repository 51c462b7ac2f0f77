"""`envgen upgrade`: try a new release beside what runs, and keep it, leave it, or go back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict

import click

from envgen.app import build as builds
from envgen.app.results import write_page
from envgen.app.session import Session
from envgen.app.upgrade import paper
from envgen.app.upgrade.trial import (
    UpgradeTrial,
    asked_before,
    backwards,
    require_way_out,
    resumed,
)
from envgen.cli.build.build import show
from envgen.cli.common import answer, ask, flag, option, reporting, wants_json
from envgen.cli.measure.sweep import shown
from envgen.errors import ExitCode, Problem, RefusedError, UsageError
from envgen.live import moving
from envgen.lock.model import InputChange
from envgen.text import first_of, progress, table, visible

CHANGES = 20  # shown at most


@click.command()
@click.argument("names", metavar="[SOURCE[==VERSION]]...", nargs=-1)
@reporting
@flag("--back", "Undo the last upgrade, without a network or a build.")
@flag("-y, --yes", "Try it without asking.")
@flag("--keep", "Keep it without asking, if it is good.")
@option(
    "--slower",
    "PERCENT",
    "Leave what is slower than this.",
    type=click.FloatRange(0, 100),
    default=5.0,
    show_default=True,
)
def command(
    session: Session, names: tuple[str, ...], back: bool, yes: bool, keep: bool, slower: float
) -> int:
    """Try another release of a source beside the server that runs; keep it if it is good.

    Without SOURCE, lists what is newer than the lock (exit code 1 if anything is). SOURCE is a
    source of the profile, a package that it names, or `base`; `vllm` is its newest release,
    `vllm==0.33.0` that one, `vllm@v0.33.0` a ref of a source from git, `base==TAG` another base.

    First it is tried on paper: packages are resolved, patches are tried, and the new vLLM is asked
    what it makes of the flags. Then its image is built beside the old one. Until then the server
    serves on. It answers the questions of `envgen answers` and a short `envgen bench`, and the
    candidate starts in its place and is asked the same. If it does not start, answers
    differently or is slower, the old one starts again. Else you are asked, and `envgen.yaml`,
    `envgen.lock` and rendered files are written together. Until then no file changes.

    After an interruption the same command goes on, and `envgen up` starts what ran before. Exits
    with 1 if it was left, with 5 if it did not start.

    \b
    Examples:
      envgen upgrade
      envgen upgrade vllm==0.33.0 --yes --keep
      envgen upgrade --back
    """
    if back:
        if names:
            raise UsageError("--back goes back to what was there before; it takes no SOURCE")
        return _back(session)
    if not names:
        return _newer(session)
    chosen = shlex.split(session.profile().chosen)
    words = shlex.join(["envgen", "upgrade", *names, *chosen])
    require_way_out(session)
    made = resumed(session, words)
    if made is None:
        made = _on_paper(session, names, yes)
        if made is None:
            return answer({"kept": False, "changes": []}, ["nothing to upgrade"])
    with moving("building"):
        show(builds.build(made.deployment(), show=not wants_json()), to_stderr=True)
    trial = UpgradeTrial(session, made, words, slower=slower)
    kept = trial.run(lambda: _agrees(trial, keep))
    return _end(trial, kept)


def _newer(session: Session) -> int:
    with moving("resolving"):
        changes = paper.differing(paper.newest(session))
        base = paper.moved_base(session)
    document = {"newer": [asdict(one) for one in changes], "base": base}
    lines = list(_changed(changes))
    if base:
        lines.append(base)
    if not lines:
        return answer(document, ["everything is the newest that fits"])
    return answer(document, lines, ExitCode.FINDINGS)


def _changed(changes: list[InputChange]) -> Iterator[str]:
    rows = []
    for one in changes[:CHANGES]:
        before = one.before or "-"
        after = one.after or "-"
        rows.append((one.name[:40], before[:40], "→", after[:40]))
    yield from table(rows, indent="  ")
    if len(changes) > CHANGES:
        yield f"  and {len(changes) - CHANGES} more"


def _on_paper(session: Session, names: tuple[str, ...], yes: bool) -> Session | None:
    """The candidate, after one screen and one question; None if it changes nothing."""
    with moving("resolving"):
        made = paper.proposed(session, names)
        builds.try_patches(made.deployment().to_build())
    changes = paper.differing(made)
    if not changes:
        return None
    for line in (*_changed(changes), *paper.checkouts(made), *asked_before(session, made)):
        progress(visible(line))
    progress(
        "The image is built beside the old one, whose server serves on. Then the server is away"
    )
    progress("for one start if the candidate is kept, and for two if it is left.")
    if not yes and not ask("Try it?"):
        hint = shlex.join(["envgen", "upgrade", *names, "--yes"])
        raise RefusedError(problems=(Problem("nothing was changed", hint=hint),))
    return made


def _agrees(trial: UpgradeTrial, keep: bool) -> bool:
    """Whether a good candidate is kept: by --keep, or by an answer on the terminal."""
    if not wants_json():
        for line in _rows(trial):
            progress(line)
    if keep or ask("Keep it?"):
        return True
    trial.reasons.append("nobody agreed to keep it: add --keep")
    return False


def _rows(trial: UpgradeTrial) -> Iterator[str]:
    for service, rows in trial.rows.items():
        yield service
        yield from shown(rows, "  ")
        added = set(rows[-1]["kernels"]).difference(rows[0]["kernels"])
        for line in sorted(added):
            yield visible(f"  another kernel: {line}")


def _pages(trial: UpgradeTrial) -> Iterator[str]:
    """The address of the page that shows what was measured beside earlier runs."""
    for service, rows in trial.rows.items():
        if any(row.get("bench") for row in rows):
            yield write_page(trial.session, service, None)[0].absolute().as_uri()
            return


def _end(trial: UpgradeTrial, kept: bool) -> int:
    pages = list(_pages(trial))
    document = {
        "kept": kept,
        "changes": [],
        "rows": trial.rows,
        "reasons": trial.reasons,
        "pages": pages,
    }
    if kept:
        profile = trial.session.profile()
        line = f"kept; the way back: envgen upgrade --back {profile.chosen}"
        return answer(document, [line, *pages])
    document["changes"] = [asdict(one) for one in paper.differing(trial.candidate)]
    lines = [*_rows(trial)]
    lines += [*(f"left: {reason}" for reason in trial.reasons), *pages]
    started = all(rows[-1]["seconds"] is not None for rows in trial.rows.values())
    code = ExitCode.FINDINGS if started else ExitCode.SERVICE
    return answer(document, first_of(lines, 40), code)


def _back(session: Session) -> int:
    made = backwards(session)
    changes = paper.differing(made)
    words = {"changes": list(map(asdict, changes))}
    lines = list(_changed(changes))
    trial = UpgradeTrial(session, made, "envgen upgrade --back", measures=False)
    kept = trial.run(lambda: True)
    for line in trial.reasons:
        progress(f"not undone: {line}")
    end = "what was there before is back" if kept else "what ran goes on"
    code = ExitCode.OK if kept else ExitCode.SERVICE
    return answer({"kept": kept, **words}, [*lines, end], code)
