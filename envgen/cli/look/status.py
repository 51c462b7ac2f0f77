"""`envgen status`: one screen on where a profile stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from envgen.app.session import Session
from envgen.app.status import Status, look
from envgen.cli.common import answer, reporting
from envgen.cli.services.running import as_data, listing
from envgen.text import short_id, size, table


@click.command()
@reporting
def command(session: Session) -> int:
    """Show profile, image, containers, checkouts, caches, lock, last build and last run on one screen.

    It takes a few seconds at most: what the engine or git do not answer by then is left out. It changes nothing.

    \b
    Example:
      envgen status -p prod --json
    """
    found = look(session)
    return answer(_document(found), _screen(found))


def _document(found: Status) -> dict[str, Any]:
    return {
        "profile": found.profile.name, "mode": found.profile.mode.value, "file": str(found.file),
        "engine": {"ok": not found.engine, "error": found.engine or None},
        "image": dict(found.image) or None, "containers": _rows(found), "lost": dict(found.lost),
        "checkouts": found.checkouts, "caches": found.caches, "lock": found.lock,
        "last_build": found.build, "last_run": found.run,
    }  # fmt: skip


def _rows(found: Status) -> list[dict[str, Any]]:
    return [as_data(one, found.digest, found.differ.get(one.id), node) for node, one in found.containers]


def _screen(found: Status) -> Iterator[str]:
    others = f"; others: {', '.join(found.others)}" if found.others else ""
    yield f"profile     {found.profile.name} ({found.profile.mode.value}) of {found.file}{others}"
    yield f"engine      {found.engine}" if found.engine else f"image       {_image(found.image)}"
    yield f"lock        {_lock(found)}"
    if found.build:
        yield f"last build  {found.build['log']}: {found.build['ended'] or 'has no end: running, or killed'}"
    if found.run:
        run = found.run
        yield f"last run    {run['id']} {run['kind']}, {run['started']}: {run['outcome']}"
    for message in found.lost.values():
        yield f"machine     {message}"
    if found.containers:
        yield from ("", *listing(_rows(found)))
    elif not found.engine:
        yield f"containers  none; start with: envgen up --profile {found.profile.name}"
    if found.checkouts:
        rows = [(str(one["name"]), _checkout(one), str(one["path"])) for one in found.checkouts]
        yield from ("", *table([("checkout", "state", "folder"), *rows]))
    if found.caches:
        caches = [("-" if one["bytes"] is None else size(one["bytes"]), one) for one in found.caches]
        rows = [(one["target"], bytes_, one["source"]) for bytes_, one in caches]
        yield from ("", *table([("cache", "size", "volume or folder"), *rows]))


def _image(image: Mapping[str, Any]) -> str:
    if image["state"] == "missing":
        return f"{image['name']} is not built"
    state = "current" if image["state"] == "current" else "older than the profile"
    return f"{image['name']} ({short_id(image['id'])}), {state}, created {image['created'][:19]}"


def _lock(found: Status) -> str:
    state = found.lock["state"]
    if state == "missing":
        return "there is no envgen.lock"
    return "up to date" if state == "current" else f"{state}: {'; '.join(found.lock['stale'])}"


def _checkout(one: Mapping[str, Any]) -> str:
    if one["trouble"]:
        return str(one["trouble"])
    where = one["branch"] or "no branch"
    commit = f" at {one['commit'][:9]}" if one["commit"] else ", no commit"
    counts = [f"{one[kind]} {kind}" for kind in ("edited", "untracked") if one[kind]]
    return f"{where}{commit}, {', '.join(counts) or 'clean'}"
