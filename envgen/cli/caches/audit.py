"""`envgen cache audit`: what it prints."""

from __future__ import annotations

import click

from envgen.app.session import Session
from envgen.cli.caches.print import open_cache
from envgen.cli.common import json_option, print_json, project_options
from envgen.jitcache.audit import findings
from envgen.jitcache.place import arch_folders
from envgen.text import counted, progress, visible


@click.command("audit")
@json_option
@project_options
def audit(session: Session, as_json: bool) -> int:
    """Show which GPU code each library really holds: of the cache, vLLM, flash-attn, and what Triton's ptxas knows.

    Ends with 1 when the profile's GPU can't run one of them.

    \b
    Example:
      envgen cache audit
    """
    cache = open_cache(session)
    found = cache.audit()
    profile = cache.profile
    archs = [(arch.major, arch.minor) for arch in profile.cuda.arch_list.archs]
    judged = findings(found, archs, arch_folders(str(profile.cuda.arch_list)))
    unknown = [assembler for assembler in found.assemblers if assembler.missing]
    bad = any(one.verdict == "error" for one in judged) or bool(unknown)
    if as_json:
        rows = [
            {"path": one.library.path, "owner": one.library.owner, "archs": list(one.library.archs),
             "verdict": one.verdict, "message": one.message}
            for one in judged
        ]  # fmt: skip
        print_json({"libraries": rows, "assemblers": [vars(assembler) for assembler in found.assemblers]})
        return 1 if bad else 0
    progress(f"{found.root} in {found.place}")
    for one in sorted(judged, key=lambda one: (one.verdict == "error", one.library.owner, one.library.name)):
        click.echo(
            f"{one.verdict:5}  {visible(one.library.owner)}  {visible(one.library.name)}: {visible(one.message)}"
        )
    for assembler in unknown:
        click.echo(f"error  triton  {visible(assembler.path)}: does not know {', '.join(assembler.missing)}")
    click.echo(
        counted(len(judged), "library", "libraries") + ("" if bad else ", all of which the profile's GPU can run")
    )
    return 1 if bad else 0
