"""`envgen model pull|check`: the weights of a service, before it is started."""

from __future__ import annotations

from collections.abc import Iterator

import click

from envgen.app import weights
from envgen.app.cluster.machines import head_of
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, reporting, service_argument, variant_option, wants_json
from envgen.deployment import LiveService
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
@service_argument
@reporting
@variant_option
def pull(session: Session, service: str | None) -> int:
    """Download the weights of SERVICE, and of its draft model, into the Hugging Face cache, or
    resume a download.

    The profile's image downloads them at the commit in envgen.lock. The files belong to your user.
    HF_TOKEN and HF_ENDPOINT come from this shell. After Ctrl-C, the next run continues.

    \b
    Example:
      envgen model pull serve --variant eagle3
    """
    return _weights(session, service, fetch=True)


@command.command("check")
@service_argument
@reporting
@variant_option
def check(session: Session, service: str | None) -> int:
    """Check that the weights of SERVICE and of its draft model are complete, without the network.

    Reads every byte: a file must have the hub's hash, where its cache has one. Exits with 1 if a
    file is missing, incomplete or another one.

    \b
    Example:
      envgen model check serve
    """
    return _weights(session, service, fetch=False)


def _weights(session: Session, service: str | None, *, fetch: bool) -> int:
    deployment = session.deployment()
    name = weights.choose(deployment.profile, service)
    head = head_of(deployment, name)
    fetched = (
        [weights.fetch(head, model) for model in deployment.profile.services[name].models]
        if fetch
        else []
    )
    held = weights.look(LiveService(head, name), deep=not fetch)
    main, *drafts = [dict(vars(one)) for one in held]
    main |= {"draft": drafts[0] if drafts else None}
    whole = all(one.whole for one in held)
    if fetch:
        lines = [
            head.named(f"{one.repo} is complete: {done.bytes / GIB:.1f} GiB at {done.commit[:12]}")
            for one, done in zip(held, fetched, strict=True)
        ]
        return answer(main | {"fetched": sum(done.bytes for done in fetched)}, lines, not whole)
    code = answer(main, [line for one in held for line in _state(one)], not whole)
    if not (whole or wants_json()):
        progress(f"hint: {deployment.profile.hint('model pull', name)}")
    return code


def _state(held: weights.Weights) -> Iterator[str]:
    size = f", {held.bytes / GIB:.1f} GiB in {counted(held.files, 'file')}" if held.files else ""
    yield f"{held.repo} is {held.state}{size}{f' at {held.commit[:12]}' if held.commit else ''}"
    yield from (f"  {problem}" for problem in held.problems)
