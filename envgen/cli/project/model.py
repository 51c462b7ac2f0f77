"""`envgen model pull|list|check`: the weights of a service, before it is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from envgen.app import weights
from envgen.app.places import at
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, reporting, wants_json
from envgen.text import GIB, counted, progress


@click.group("model", cls=FullGroup)
def command() -> None:
    """Download and check the weights that services load.

    \b
    Examples:
      envgen model pull
      envgen model check serve --json
    """


@command.command("pull")
@click.argument("service", required=False)
@reporting
def pull(session: Session, service: str | None) -> int:
    """Download the weights of SERVICE into the Hugging Face cache, or resume a download.

    The profile's image downloads them at the commit in envgen.lock. The files belong to your user. HF_TOKEN and
    HF_ENDPOINT come from this shell. After Ctrl-C, the next run continues.

    \b
    Example:
      envgen model pull serve
    """
    return _weights(session, service, fetch=True)


@command.command("check")
@click.argument("service", required=False)
@reporting
def check(session: Session, service: str | None) -> int:
    """Check that the weights of SERVICE are complete, without the network.

    Exits with 1 if a file is missing or incomplete.

    \b
    Example:
      envgen model check serve
    """
    return _weights(session, service, fetch=False)


def _weights(session: Session, service: str | None, *, fetch: bool) -> int:
    here = session.deployment()
    name = weights.choose(here.profile, service)
    there = at(here, name)
    commit, fetched = weights.fetch(there, name) if fetch else ("", 0)
    found = weights.look(there, name)
    document = {key: value for key, value in vars(found).items() if key != "model"}
    document |= {"repo": found.model.repo, "revision": found.model.revision}
    if fetch:
        line = there.named(f"{found.model.repo} is complete: {fetched / GIB:.1f} GiB at {commit[:12]}")
        return answer(document | {"fetched": fetched}, [line], not found.whole)
    size = f", {found.bytes / GIB:.1f} GiB in {counted(found.files, 'file')}" if found.files else ""
    line = f"{found.model.repo} is {found.state}{size}{f' at {found.commit[:12]}' if found.commit else ''}"
    code = answer(document, [line, *(f"  {problem}" for problem in found.problems)], not found.whole)
    if not (found.whole or wants_json()):
        progress(f"hint: envgen model pull {name} {here.profile.chosen}")
    return code


@command.command("list")
@reporting
def list_(session: Session) -> int:
    """List the models in the profile's Hugging Face cache.

    \b
    Example:
      envgen model list
    """
    found = weights.cached(at(session.deployment()))
    return answer([dict(one) for one in found], _models(found))


def _models(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in found:
        refs = ", ".join(f"{ref} {str(commit)[:12]}" for ref, commit in dict(one.get("refs") or {}).items())
        partial = f", {counted(one['partial'], 'file')} not finished" if one.get("partial") else ""
        yield f"{one.get('repo')}  {int(one.get('bytes') or 0) / GIB:.1f} GiB  {refs}{partial}"
    if not found:
        yield "no models in the cache"
