"""`envgen status`: the state of a profile on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from envgen.app.session import Session
from envgen.app.status import look
from envgen.cli.common import answer, reporting
from envgen.cli.run.ps import code_of, endings, listing
from envgen.errors import ExitCode
from envgen.profile.model import Profile
from envgen.text import first_of, short_id, table

CHANGES = 12  # at most this many changes since the build are shown; --json has all


@click.command()
@reporting
def command(session: Session) -> int:
    """Show profile, image, containers, caches and lock on one screen.

    If the image is older than the profile, lists what has changed. Leaves out what the engine does not answer within a
    few seconds. A server that has ended by itself is a FAIL with the cause from its log (exit code 1). Ends
    with 3 if the engine does not answer.

    \b
    Example:
      envgen status -p prod --json
    """
    found = look(session)
    code = code_of(found["containers"]) if found["engine"]["ok"] else ExitCode.ENGINE
    return answer(found, _screen(found, session.profile()), code)


def _screen(found: Mapping[str, Any], profile: Profile) -> Iterator[str]:
    others = f"; others: {', '.join(found['others'])}" if found["others"] else ""
    yield f"profile     {found['profile']} ({found['mode']}) of {found['file']}{others}"
    trouble = found["engine"]["error"]
    if found["engine"]["ok"]:
        yield f"image       {f'unknown: {trouble}' if trouble else _image(found['image'], found['containers'])}"
    else:
        yield f"engine      {trouble}"
    changes = [one["text"] for one in (found["image"] or {}).get("changed", ())]
    yield from (f"            {line}" for line in first_of(changes, CHANGES))
    yield from (f"patches     {line}" for line in found["left_out"])
    yield f"lock        {_lock(found['lock'])}"
    if found["drift"]:
        yield f"files       out of date: {', '.join(found['drift'])}; update with: {profile.render_command}"
    for message in found["lost"].values():
        yield f"machine     {message}"
    if found["containers"]:
        yield from ("", *listing(found["containers"]), *endings(found["containers"], f"--profile {found['profile']}"))
        for name, told in found["notices"].items():
            yield from (f"note  {name}: {one['cause']}: {one['cure']} ({one['rule']})" for one in told)
    elif found["other_folder"]:  # `up` says what to do: this folder may have been moved
        yield f"containers  of {found['other_folder']}, which has this project's name; see: envgen up {profile.chosen}"
    elif not trouble:
        yield f"containers  none; start with: envgen up {profile.chosen}"
    if found["caches"]:
        places = [(cache["target"], cache["source"]) for cache in found["caches"]]
        yield from ("", *table([("cache", "volume or folder"), *places]))


def _image(image: Mapping[str, Any], containers: Sequence[Mapping[str, Any]]) -> str:
    if image["state"] == "missing":
        if any(one["image"] == "current" for one in containers):
            return f"{image['name']} was removed, but containers still run it; rebuild with: envgen build"
        return f"{image['name']} is not built"
    state = "current" if image["state"] == "current" else "older than the profile"
    return f"{image['name']} ({short_id(image['id'])}), {state}, built {image['created'][:19]}"


def _lock(lock: Mapping[str, Any]) -> str:
    state = lock["state"]
    if state == "missing":
        return "no envgen.lock"
    return "up to date" if state == "current" else f"{state}: {'; '.join(lock['stale'])}"
