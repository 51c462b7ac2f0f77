"""`envgen lock`: resolve every input, or say which have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envgen.app.lock import patch_locks
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.engine.docker import connect
from envgen.errors import ExitCode, LockError, Place, Problem, UsageError
from envgen.files import state_dir
from envgen.lock import file
from envgen.lock.ask import Stale, stale
from envgen.lock.compare import changes, facts
from envgen.lock.gitrefs import Git
from envgen.lock.model import Lock
from envgen.lock.reading import load
from envgen.lock.resolve import Outcome, Tools, resolve
from envgen.lock.upgrade import Upgrade, checked
from envgen.profile.model import Profile
from envgen.redact import without_login
from envgen.text import progress


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@project_options
@click.option("--check", is_flag=True, help="Ask nobody; exit 1 and say what is missing or has changed.")
@click.option("--upgrade", is_flag=True, help="Resolve the named inputs anew (all where none is named).")
@click.option("--offline", is_flag=True, help="Use what is there already; fail where something must be asked.")
@click.option("--dry-run", is_flag=True, help="Resolve and show what would change; write nothing.")
@json_option
def command(
    session: Session, names: tuple[str, ...], check: bool, upgrade: bool, offline: bool, dry_run: bool, as_json: bool
) -> int:
    """Write envgen.lock: base image, commits, packages, files and patches, each exactly.

    Only what has no answer yet is asked for; everything else stays. NAME, with --upgrade: base, apt, pip, a source
    such as vllm, or a Python package. envgen.local.yaml and ENVGEN_ variables are left out, as the file is shared.

    \b
    Example:
      envgen lock
      envgen lock --check
      envgen lock --upgrade vllm
    """
    if names and not upgrade:
        raise UsageError("names go with --upgrade", hint=f"envgen lock --upgrade {' '.join(names)}")
    if check and (upgrade or dry_run):
        raise UsageError("--check changes nothing, so --upgrade and --dry-run say nothing with it")
    if session.sets:
        raise UsageError("--set would not reach the committed lock")
    if check:
        return _check(session, as_json)
    return _lock(session, names, upgrade, offline, dry_run, as_json)


def _profiles(session: Session) -> tuple[list[Profile], list[Profile]]:
    """(those that were chosen, all)."""
    project = session.loaded(local=False).project
    every = list(project.profiles.values())
    return ([session.profile(local=False)] if session.profile_name else every), every


# --- check ------------------------------------------------------------------------------------------------------------


def _check(session: Session, as_json: bool) -> int:
    profiles, _ = _profiles(session)
    root = session.loaded(local=False).project.root
    lock = load(root)
    patches = patch_locks(profiles, root)
    found: dict[str, list[Stale]] = {p.name: stale(p, lock, patches) for p in profiles} if lock else {}
    if as_json:
        rows = [{"profile": p, "name": s.name, "message": s.message} for p, items in found.items() for s in items]
        print_json({"exists": lock is not None, "stale": rows})
    elif lock is None:
        progress("there is no envgen.lock: run `envgen lock`")
    else:
        _say_stale(session, found)
    if lock is None or any(found.values()):
        return ExitCode.FINDINGS
    if not as_json:
        progress("envgen.lock is up to date")
    return ExitCode.OK


def _say_stale(session: Session, found: dict[str, list[Stale]]) -> None:
    told: dict[str, list[str]] = {}
    for profile, items in found.items():
        for item in items:
            told.setdefault(f"{place_of(session, profile, item.key)}{item}", []).append(profile)
    for sentence, profiles in told.items():
        click.echo(f"{sentence} ({', '.join(profiles)})")
    if told:
        progress("envgen.lock is stale: run `envgen lock`")


def place_of(session: Session, profile: str, key: str) -> str:
    """``envgen.yaml:12:3: `` of a key, "" where it stands nowhere."""
    place = _place(session, profile, key)
    return f"{place}: " if place else ""


def _place(session: Session, profile: str, key: str) -> Place | None:
    node = session.loaded(local=False).trees.get(profile)
    for part in key.split(".") if key else ():
        node = node.items.get(part) if node is not None else None
    place = node.place() if node is not None and key else None
    return place if place and place.line else None


# --- lock -------------------------------------------------------------------------------------------------------------


def _lock(session: Session, names: tuple[str, ...], upgrade: bool, offline: bool, dry_run: bool, as_json: bool) -> int:
    profiles, every = _profiles(session)
    root = session.loaded(local=False).project.root
    with file.exclusive(state_dir(root, "state")):
        old = load(root) or Lock()
        wanted = Upgrade(checked(names, profiles, old), upgrade and not names)
        outcome = _resolve(session, profiles, every, old, wanted, offline)
        for note in outcome.notes:
            progress(f"note: {note}")
        if outcome.problems:
            raise _failure(session, outcome)
        found = changes(facts(old), facts(outcome.lock))
        written = False if dry_run else file.save(root / file.FILE_NAME, outcome.lock)
    if as_json:
        rows = [{"name": c.name, "before": c.before, "after": c.after} for c in found]
        print_json({"changes": rows, "notes": outcome.notes, "written": written, "dry_run": dry_run})
        return ExitCode.OK
    for change in found:
        if not change.name.endswith(" sha256") or change.before:
            click.echo(f"{change.name}: {change.after}" if not old.images else str(change))
    if dry_run:
        progress(f"{len(found)} inputs would change" if found else "nothing would change")
    else:
        progress(f"wrote {file.FILE_NAME}" if written else f"{file.FILE_NAME} is up to date")
    return ExitCode.OK


def _resolve(
    session: Session, profiles: list[Profile], every: list[Profile], old: Lock, upgrade: Upgrade, offline: bool
) -> Outcome:
    root = session.loaded(local=False).project.root
    patches = patch_locks(profiles, root)
    return resolve(profiles, every, old, patches, upgrade, _tools(session, offline))


def _tools(session: Session, offline: bool) -> Tools:
    network = session.profile().network  # with all layers: a CA file is a fact about this machine
    root = session.loaded().project.root
    ca = ""
    if network.ca_certificates is not None:
        ca = str((root / Path(network.ca_certificates.path).expanduser()).resolve())
    return Tools(connect, Git(progress), progress, ca, offline)


def _failure(session: Session, outcome: Outcome) -> Any:
    error = LockError(outcome.problems[0].message)
    unique = {(problem.message, problem.hint): problem for problem in outcome.problems}
    error.problems = tuple(
        Problem(p.message, p.place or _asked_at(session, p.message), p.hint) for p in unique.values()
    )
    progress("envgen.lock is as it was")
    return error


def _asked_at(session: Session, message: str) -> Place | None:
    """Where the project file asks for the input that a message begins with."""
    for profile in _profiles(session)[1]:
        if message.startswith((f"{profile.base.image}:", f"{profile.base.image} ")):
            return _place(session, profile.name, "base.image")
        for name, source in profile.sources.items():
            git = source.origin.git
            if git and message.startswith(f"{source.origin.git_ref} of {without_login(git)}:"):
                return _place(session, profile.name, f"sources.{name}.origin")
        if message.startswith(f"the Python packages of profile {profile.name}:"):
            return _place(session, profile.name, "pip")
        if message.startswith(f"the Debian packages of profile {profile.name}:"):
            return _place(session, profile.name, "apt")
    return None
