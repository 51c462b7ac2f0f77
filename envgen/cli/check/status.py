"""`envgen status`: the state of a profile on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from envgen.app.session import Session
from envgen.app.status import look
from envgen.binding import JsonObject
from envgen.cli.common import answer, reporting
from envgen.cli.run.ps import code_of, endings, listing
from envgen.errors import ExitCode
from envgen.profile.model import Profile
from envgen.text import first_of, short_id, size, table

LEFT = 1 << 30  # bytes of leftovers from which on they are worth a line
CHANGES = 12  # at most this many changes since the build are shown; --json has all


@click.command()
@reporting
def command(session: Session) -> int:
    """Show profile, image, containers, caches and lock on one screen.

    If the image differs from the profile, lists what has changed. Leaves out what the engine does
    not answer within a few seconds. A server that has ended by itself is a FAIL with the cause from
    its log (exit code 1). Ends with 3 if the engine does not answer.

    \b
    Example:
      envgen status -p prod --json
    """
    state = look(session)
    code = code_of(state["containers"]) if state["engine"]["ok"] else ExitCode.ENGINE
    return answer(state, _screen(state, session.profile()), code)


def _screen(state: JsonObject, profile: Profile) -> Iterator[str]:
    others = f"; others: {', '.join(state['others'])}" if state["others"] else ""
    yield f"profile     {state['profile']} ({state['mode']}) of {state['file']}{others}"
    trouble = state["engine"]["error"]
    image = state["image"] or {}
    if not state["engine"]["ok"]:
        yield f"engine      {trouble}"
    elif trouble:
        yield f"image       unknown: {trouble}"
    else:
        yield f"image       {_image(image, state['containers'])}"
    changes = [one["text"] for one in image.get("changed", ())]
    yield from (f"            {line}" for line in first_of(changes, CHANGES))
    yield from (f"patches     {line}" for line in state["left_out"])
    yield f"lock        {_lock(state['lock'])}"
    if state["trial"]:
        yield f"trial       under way: `{state['trial']}` goes on with it, `envgen up` ends it"
    if state["back"]:
        back = f"envgen upgrade --back {profile.chosen}"
        yield f"way back    to image {short_id(state['back'])}: {back}"
    if (state["leftovers"] or 0) >= LEFT:
        yield f"disk        {size(state['leftovers'])} that nothing needs: envgen prune --dry-run"
    if state["drift"]:
        yield f"files       out of date: {', '.join(state['drift'])}; update with: {profile.render_command}"
    for message in state["lost"].values():
        yield f"machine     {message}"
    if state["containers"]:
        yield from (
            "",
            *listing(state["containers"]),
            *endings(state["containers"], f"--profile {state['profile']}"),
        )
        for name, explained in state["notices"].items():
            yield from (
                f"note  {name}: {one['cause']}: {one['cure']} ({one['rule']})" for one in explained
            )
    elif state["other_folder"]:  # `up` says what to do: this folder may have been moved
        yield f"containers  of {state['other_folder']}, which has this project's name; see: envgen up {profile.chosen}"
    elif not trouble:
        yield f"containers  none; start with: envgen up {profile.chosen}"
    yield from (f"also        {line}" for line in state["also"])
    if state["caches"]:
        places = [(cache["target"], cache["source"]) for cache in state["caches"]]
        yield from ("", *table([("cache", "volume or folder"), *places]))


def _image(image: JsonObject, containers: Sequence[JsonObject]) -> str:
    if image["state"] == "missing":
        if any(one["image"] == "current" for one in containers):
            return f"{image['name']} was removed, but containers still run it; rebuild with: envgen build"
        return f"{image['name']} is not built"
    state = "current" if image["state"] == "current" else "differs from the profile"
    return f"{image['name']} ({short_id(image['id'])}), {state}, built {image['created'][:19]}"


def _lock(lock: JsonObject) -> str:
    state = lock["state"]
    if state == "missing":
        return "no envgen.lock"
    return "up to date" if state == "current" else f"{state}: {'; '.join(lock['stale'])}"
