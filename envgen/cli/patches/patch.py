"""`envgen patch`: the patches of a project's sources. Looking at them; what changes them is in patch_edit.py."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from envgen.app.patch_sources import Sources, Target, find_targets, versions_between
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import json_option, print_json, project_options
from envgen.cli.patches import edit as patch_edit
from envgen.errors import EnvgenError, ExitCode, UsageError
from envgen.patches import report
from envgen.patches.dry_run import DryRun, State, dry_run
from envgen.patches.header import in_range
from envgen.patches.trees import Tree
from envgen.text import counted, progress


@click.group(cls=FullGroup)
def command() -> None:
    """Patches: try, make, carry over, apply to a checkout, retire.

    \b
    Examples:
      envgen patch check
      envgen patch check vllm --range 0.13.0..0.20.2
      envgen patch new faster-moe vllm
    """


@command.command("list")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@json_option
@project_options
def list_(session: Session, sources: tuple[str, ...], as_json: bool) -> int:
    """Show the patches of each source: what for, for which versions, and whether a compiler has to see them.

    \b
    Example:
      envgen patch list vllm
    """
    documents: list[dict[str, Any]] = []
    for target in find_targets(session, sources):
        series = target.series()
        fitting = series.for_version(target.version)
        late = {patch.name for patch in fitting.split(target.source.package)[1]}
        rows: list[dict[str, Any]] = [
            {
                "name": patch.name,
                "path": patch.path,
                "title": patch.header.title,
                "applies_to": patch.header.applies_to or None,
                "in_range": in_range(patch.header.applies_to, target.version),
                "python_only": patch.name in late or patch.is_python_only(target.source.package),
                "touches": list(patch.touches),
                "fields": dict(patch.header.fields),
            }
            for patch in series.patches
        ]
        documents.append(
            {
                "source": target.name,
                "profile": target.profile,
                "series": f"{series.folder}/series",
                "version": target.version or None,
                "patches": rows,
            }
        )
    if as_json:
        print_json({"sources": documents})
        return ExitCode.OK
    for document in documents:
        click.echo(
            f"{document['source']} {document['version'] or ''} (profile {document['profile']})".replace("  ", " ")
        )
        for row in document["patches"]:
            kind = "Python only" if row["python_only"] else "built with the wheel"
            note = "" if row["in_range"] else ", SKIPPED: not for this version"
            click.echo(
                f"  {row['name']}\n      {row['title']}\n      {kind}; for {row['applies_to'] or 'every version'}{note}"
            )
    return ExitCode.OK


@command.command("check")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("--release", "releases", multiple=True, metavar="V", help="Against this release; may be repeated.")
@click.option("--range", "span", metavar="A..B", help="Against every release from A to B: a matrix.")
@click.option("--ref", metavar="REF", help="Against a branch, tag or commit of the source's repository.")
@click.option("--allow-fuzzy", is_flag=True, help="Let a patch pass that fits with less context than it has.")
@json_option
@project_options
def check(
    session: Session,
    sources: tuple[str, ...],
    releases: tuple[str, ...],
    span: str | None,
    ref: str | None,
    allow_fuzzy: bool,
    as_json: bool,
) -> int:
    """Try patches against bare sources. Nothing is built, and nothing but a cache is written.

    Without an option: against what the profiles build. Exits with 1 where a build would stop.

    \b
    Examples:
      envgen patch check
      envgen patch check vllm --release 0.16.0
      envgen patch check vllm --range 0.13.0..0.20.2
    """
    if sum(map(bool, (releases, span, ref))) > 1:
        raise UsageError("--release, --range and --ref exclude each other")
    targets = find_targets(session, sources)
    bare = Sources(say=progress)
    found: list[tuple[Target, list[DryRun]]] = []
    untried: dict[str, list[str]] = {}
    empty = [target for target in targets if not target.series().patches]
    for target in empty:
        progress(f"{target.folder} has no patches yet; `envgen patch new NAME {target.name}` makes one")
    for target in targets:
        if target in empty:
            continue
        missing = untried.setdefault(target.name, []) if span else None
        trees = _trees(bare, target, releases, span, ref, missing, alone=len(targets) == 1)
        beyond = bool(span) or len(releases) > 1
        if trees:
            found.append((target, [dry_run(tree, target.series(), beyond_range=beyond) for tree in trees]))
    if not found and not empty:
        raise UsageError("none of these sources has such a release", hint="see the names: envgen patch list")
    if as_json:
        documents = []
        for target, runs in found:
            documents += [report.as_document(target.name, run) for run in runs]
        last = {target.name: report.last_fits(runs) for target, runs in found}
        print_json({"rehearsals": documents, "last_fits": last, "untried": untried})
    else:
        for target, runs in found:
            if span or len(runs) > 1:
                click.echo("\n".join(report.matrix(runs)))
            else:
                click.echo("\n".join(report.lines(runs[0])))
            if left := untried.get(target.name):
                click.echo(f"not tried: {', '.join(left)}")
                click.echo(f"    try the tag: envgen patch check {target.name} --ref v{left[0]}")
    bad = [verdict for _, runs in found for one in runs for verdict in one.verdicts if not verdict.ok]
    passes = all(allow_fuzzy and verdict.state is State.FUZZY for verdict in bad)
    return ExitCode.OK if passes else ExitCode.FINDINGS


def _trees(
    bare: Sources,
    target: Target,
    releases: Sequence[str],
    span: str | None,
    ref: str | None,
    untried: list[str] | None,
    *,
    alone: bool,
) -> list[Tree]:
    """What a source is held against. With several sources, one without such a release is passed over and said.

    ``untried`` gets the releases of a range that can't be read.
    """
    if ref:
        return [bare.ref(target, ref)]
    wanted = list(releases)
    if span:
        wanted = versions_between(_available(bare, target), span)
        if not wanted:
            progress(f"{target.name}: no release in {span}")
            return []
        _prefetch(bare, target, wanted)
    if not wanted:
        return [bare.built(target)]
    trees: list[Tree] = []
    for version in wanted:
        try:
            trees.append(bare.release(target, version))
        except EnvgenError as error:
            if untried is not None:
                untried.append(version)
            elif alone:
                raise
            progress(f"{target.name}: {error}")
    return trees


def _available(bare: Sources, target: Target) -> list[str]:
    name = target.source.distribution
    try:
        return bare.index.versions(name)
    except EnvgenError as error:
        cached = bare.index.cached_versions(name)
        if not cached:
            raise
        progress(f"{error}; taking {counted(len(cached), 'release')} from the cache")
        return cached


def _prefetch(bare: Sources, target: Target, versions: Sequence[str]) -> None:
    """Several downloads at once; a failure is reported when its result is used."""

    def fetch(version: str) -> None:
        with contextlib.suppress(EnvgenError):
            bare.index.fetch(target.source.distribution, version)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fetch, versions))


for _made in (patch_edit.new, patch_edit.refresh, patch_edit.apply, patch_edit.drop):
    command.add_command(_made)
