"""`envgen model pull|list|check`: the weights of a service, before it is started."""

from __future__ import annotations

import click

from envgen.app import weights
from envgen.app.places import at
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import json_option, print_json, project_options
from envgen.text import counted, progress

GIB = 1 << 30


@click.group("model", cls=FullGroup)
def command() -> None:
    """Fetch and check the weights that services load.

    \b
    Examples:
      envgen model pull
      envgen model check serve --json
    """


@command.command("pull")
@click.argument("service", required=False)
@project_options
@json_option
def pull(session: Session, service: str | None, as_json: bool) -> int:
    """Fetch the weights of SERVICE into the Hugging Face cache; continue what was begun.

    They are fetched by the image's huggingface_hub, at the commit that envgen.lock names, and belong to you.
    HF_TOKEN and HF_ENDPOINT are taken from this shell. Ctrl-C keeps what is there.

    \b
    Example:
      envgen model pull serve
    """
    return _weights(session, service, as_json, fetch=True)


@command.command("check")
@click.argument("service", required=False)
@project_options
@json_option
def check(session: Session, service: str | None, as_json: bool) -> int:
    """Check without a network that the weights of SERVICE are whole (exit code 1: they are not).

    \b
    Example:
      envgen model check serve
    """
    return _weights(session, service, as_json, fetch=False)


def _weights(session: Session, service: str | None, as_json: bool, *, fetch: bool) -> int:
    root, profile = session.loaded().project.root, session.profile()
    name = weights.choose(profile, service)
    there = at(profile, name)
    engine = there.connect()
    commit, fetched = weights.fetch(engine, there.profile, root, name) if fetch else ("", 0)
    found = weights.look(engine, there.profile, root, name, weights.locked_commit(there.profile, root, name))
    if as_json:
        plain = {key: value for key, value in vars(found).items() if key != "model"}
        more = {"fetched": fetched} if fetch else {}
        print_json({**plain, "repo": found.model.repo, "revision": found.model.revision, **more})
    elif fetch:
        click.echo(there.named(f"{found.model.repo} is complete: {fetched / GIB:.1f} GiB at {commit[:12]}"))
    else:
        size = f", {found.bytes / GIB:.1f} GiB in {counted(found.files, 'file')}" if found.files else ""
        click.echo(f"{found.model.repo} is {found.state}{size}{f' at {found.commit[:12]}' if found.commit else ''}")
        for problem in found.problems:
            click.echo(f"  {problem}")
        if not found.whole:
            progress(f"hint: envgen model pull {name} --profile {profile.name}")
    return 0 if found.whole else 1


@command.command("list")
@project_options
@json_option
def list_(session: Session, as_json: bool) -> int:
    """List the models in the profile's Hugging Face cache.

    \b
    Example:
      envgen model list
    """
    root, profile = session.loaded().project.root, session.profile()
    there = at(profile)
    found = weights.cached(there.connect(), there.profile, root)
    if as_json:
        print_json([dict(one) for one in found])
        return 0
    for one in found:
        refs = ", ".join(f"{ref} {str(commit)[:12]}" for ref, commit in dict(one.get("refs") or {}).items())
        partial = f", {counted(one['partial'], 'file')} not finished" if one.get("partial") else ""
        click.echo(f"{one.get('repo')}  {int(one.get('bytes') or 0) / GIB:.1f} GiB  {refs}{partial}")
    if not found:
        click.echo("no models in the cache")
    return 0
