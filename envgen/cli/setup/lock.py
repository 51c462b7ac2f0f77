"""`envgen lock`: resolve the inputs, or list those that have changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from envgen.app import lock
from envgen.app.session import Session
from envgen.cli.common import answer, flag, reporting
from envgen.errors import ExitCode, UsageError
from envgen.live import moving
from envgen.lock.ask import Stale
from envgen.lock.model import load
from envgen.text import progress


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@reporting
@flag("--check", "Write nothing; exit with 1 if an input is missing or has changed.")
@flag("--upgrade", "Resolve the named inputs again (default: all of them).")
def command(session: Session, names: tuple[str, ...], check: bool, upgrade: bool) -> int:
    """Pin the inputs of all profiles, or of --profile, in envgen.lock.

    Inputs are the base image, commits and packages. Inputs that are already locked stay as they
    are, unless --upgrade names them: NAME is base, pip, a source such as vllm, or a Python package.
    envgen.local.yaml and ENVGEN_ variables are ignored, because the file is shared.

    \b
    Examples:
      envgen lock --check
      envgen lock --upgrade vllm
    """
    if names and not upgrade:
        raise UsageError("names go with --upgrade", hint=f"envgen lock --upgrade {' '.join(names)}")
    if check and upgrade:
        raise UsageError("--upgrade has no effect with --check")
    if session.sets:
        raise UsageError(
            "--set has no effect on envgen.lock", hint="change the project file instead"
        )
    return _check(session) if check else _lock(session, names, upgrade)


def _check(session: Session) -> int:
    with moving("checking"):
        checked = lock.check(session, load(session.loaded(local=False).project.root))
    rows = [
        {"profile": p, "name": s.name, "message": s.message}
        for p, items in (checked or {}).items()
        for s in items
    ]
    code = ExitCode.FINDINGS if checked is None or rows else ExitCode.OK
    return answer({"exists": checked is not None, "stale": rows}, _stale(session, checked), code)


def _stale(session: Session, checked: dict[str, list[Stale]] | None) -> Iterator[str]:
    if checked is None:
        return progress("no envgen.lock: run `envgen lock`")
    stale: dict[str, list[str]] = {}
    for profile, items in checked.items():
        for item in items:
            place = session.loaded(local=False).place_of(profile, item.key)
            stale.setdefault(f"{place}: {item}" if place else str(item), []).append(profile)
    for sentence, profiles in stale.items():
        yield f"{sentence} ({', '.join(profiles)})"
    progress("envgen.lock is stale: run `envgen lock`" if stale else "envgen.lock is up to date")


def _lock(session: Session, names: tuple[str, ...], upgrade: bool) -> int:
    with moving("resolving"):
        update = lock.update(session, names, upgrade=upgrade)
    left = [problem.message for problem in update.left]
    document = {
        "changes": list(map(asdict, update.changes)),
        "notes": update.notes,
        "written": update.written,
        "left": left,
    }
    lines = []
    for change in update.changes:
        is_hash = change.name.endswith(" sha256") and not change.before
        if not update.first and not is_hash:  # of a first lock all is new: the file has it
            lines.append(str(change))
    return answer(document, lines, ExitCode.LOCK if left else ExitCode.OK)
