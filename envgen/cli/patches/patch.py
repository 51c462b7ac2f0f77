"""`envgen patch`: the patches of a project's sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from envgen.app.patch_sources import (
    Sources,
    Target,
    checkout_of,
    find_targets,
    new_target,
    one_target,
    versions_between,
)
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, project_options, reporting
from envgen.errors import EnvgenError, ExitCode, RefusedError, UsageError
from envgen.patches import series as series_folder
from envgen.patches.checkout import Checkout, Outcome, Refreshed
from envgen.patches.checkout import refresh as carry
from envgen.patches.dry_run import DryRun, State, Tree, as_document, dry_run, last_fits, report_lines, report_matrix
from envgen.patches.series import head_of, in_range, read_header, rewrite, set_field
from envgen.text import counted, progress, visible


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
@reporting
def list_(session: Session, sources: tuple[str, ...]) -> int:
    """Show the patches of each source: what for, for which versions, and whether a compiler has to see them.

    \b
    Example:
      envgen patch list vllm
    """
    documents: list[dict[str, Any]] = []
    for target in find_targets(session, sources):
        series, version, package = target.series(), target.version, target.source.package
        late = {patch.name for patch in series.for_version(version).split(package)[1]}
        rows = [
            {"name": patch.name, "path": patch.path, "title": patch.header.title,
             "applies_to": patch.header.applies_to or None, "in_range": in_range(patch.header.applies_to, version),
             "python_only": patch.name in late or patch.is_python_only(package), "touches": list(patch.touches),
             "fields": dict(patch.header.fields)}
            for patch in series.patches
        ]  # fmt: skip
        head = {"source": target.name, "profile": target.profile, "series": f"{series.folder}/series"}
        documents.append({**head, "version": version or None, "patches": rows})
    return answer({"sources": documents}, _listed(documents))


def _listed(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in documents:
        yield " ".join(filter(None, (one["source"], one["version"], f"(profile {one['profile']})")))
        for row in one["patches"]:
            kind = "Python only" if row["python_only"] else "built with the wheel"
            note = "" if row["in_range"] else ", SKIPPED: not for this version"
            yield f"  {row['name']}\n      {row['title']}"
            yield f"      {kind}; for {row['applies_to'] or 'every version'}{note}"


@command.command("check")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("--release", "releases", multiple=True, metavar="V", help="Against this release; may be repeated.")
@click.option("--range", "span", metavar="A..B", help="Against every release from A to B: a matrix.")
@click.option("--ref", metavar="REF", help="Against a branch, tag or commit of the source's repository.")
@click.option("--allow-fuzzy", is_flag=True, help="Let a patch pass that fits with less context than it has.")
@reporting
def check(
    session: Session, sources: tuple[str, ...], releases: tuple[str, ...], span: str | None, ref: str | None,
    allow_fuzzy: bool,
) -> int:  # fmt: skip
    """Try patches against bare sources. Nothing is built, and nothing but a cache is written.

    Without an option: against what the profiles build. Exits with 1 where a build would stop.

    \b
    Examples:
      envgen patch check
      envgen patch check vllm --range 0.13.0..0.20.2
    """
    if sum(map(bool, (releases, span, ref))) > 1:
        raise UsageError("--release, --range and --ref exclude each other")
    targets = find_targets(session, sources)
    found: list[tuple[Target, list[DryRun]]] = []
    untried: dict[str, list[str]] = {}  # releases of a range that can't be read
    empty = False
    for target in targets:
        series = target.series()
        if not series.patches:
            empty = True
            progress(f"{target.folder} has no patches yet; `envgen patch new NAME {target.name}` makes one")
            continue
        trees = _trees(Sources(say=progress), target, releases, span, ref, untried, alone=len(targets) == 1)
        beyond = bool(span) or len(releases) > 1
        if trees:
            found.append((target, [dry_run(tree, series, beyond_range=beyond) for tree in trees]))
    if not found and not empty:
        raise UsageError("none of these sources has such a release", hint="see the names: envgen patch list")

    def lines() -> Iterator[str]:
        for target, runs in found:
            yield from report_matrix(runs) if span or len(runs) > 1 else report_lines(runs[0])
            if left := untried.get(target.name):
                yield f"not tried: {', '.join(left)}"
                yield f"    try the tag: envgen patch check {target.name} --ref v{left[0]}"

    documents = [as_document(target.name, run) for target, runs in found for run in runs]
    last = {target.name: last_fits(runs) for target, runs in found}
    bad = [verdict for _, runs in found for run in runs for verdict in run.verdicts if not verdict.ok]
    passes = all(allow_fuzzy and verdict.state is State.FUZZY for verdict in bad)
    code = ExitCode.OK if passes else ExitCode.FINDINGS
    return answer({"rehearsals": documents, "last_fits": last, "untried": untried}, lines(), code)


def _trees(
    bare: Sources, target: Target, releases: Sequence[str], span: str | None, ref: str | None,
    untried: dict[str, list[str]], *, alone: bool,
) -> list[Tree]:  # fmt: skip
    """What a source is held against. With several sources, one without such a release is passed over and said."""
    if ref:
        return [bare.ref(target, ref)]
    if not releases and not span:
        return [bare.built(target)]
    wanted = list(releases)
    if span:
        wanted = versions_between(bare.index.versions(target.source.distribution), span)
        if not wanted:
            progress(f"{target.name}: no release in {span}")
        untried[target.name] = []
        with ThreadPoolExecutor(4) as pool:  # several downloads at once; a failure is reported when its result is used
            for version in wanted:
                pool.submit(bare.index.fetch, target.source.distribution, version)
    trees: list[Tree] = []
    for version in wanted:
        try:
            trees.append(bare.release(target, version))
        except EnvgenError as error:
            if span:
                untried[target.name].append(version)
            elif alone:
                raise
            progress(f"{target.name}: {error}")
    return trees


SHOWN_LINES = 60

source_argument = click.argument("source", required=False)
checkout_option = click.option(
    "--checkout", type=click.Path(path_type=Path), metavar="DIR", help="The checkout (default: what a profile mounts)."
)


@command.command("new")
@click.argument("name")
@source_argument
@checkout_option
@click.option("-m", "--description", default="", help="What it is for, in one line.")
@project_options
def new(session: Session, name: str, source: str | None, checkout: Path | None, description: str) -> int:
    """Make a patch from what was changed in a mounted checkout.

    With patches applied there (`envgen patch apply`), or made there before, from what was changed since. The files of
    the checkout stay as they are. The first patch of a source makes its folder and series.

    \b
    Example:
      envgen patch new faster-moe vllm -m 'Fewer launches in the MoE layers'
    """
    target, missing = new_target(session, source)
    there = Checkout(checkout_of(session.loaded().project, target.name, checkout))
    diff = there.changes()
    if not diff:
        raise UsageError(f"nothing is changed in {there.folder}", hint="edit something there first")
    version = there.version or target.version
    fields = {
        "Description": " ".join(description.split()) or name.replace("-", " "),
        "Origin": f"made on {version or there.head[:12]}",
        "Forwarded": "no",
        "Applies-To": f"=={version}" if version else "",
        "Verified": "not yet",
    }
    head = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    path = series_folder.add(target.root, target.folder, name, head, diff)
    there.adopt(target.series().for_version(there.version))
    click.echo(path)
    if missing:
        progress(missing)
    progress("its head says what it is for and where it fits: complete it, then run `envgen patch check`")
    return ExitCode.OK


@command.command("refresh")
@source_argument
@click.option("--release", metavar="V", help="Carry to this release.")
@click.option("--ref", metavar="REF", help="Carry to this branch, tag or commit.")
@click.option("--applies-to", metavar="RANGE", help="Write this range into the patches that are carried.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would come out; write nothing.")
@reporting
def refresh(
    session: Session, source: str | None, release: str | None, ref: str | None, applies_to: str | None, dry_run: bool
) -> int:  # fmt: skip
    """Carry a series to another version by three-way merge. Written only when every patch comes through.

    \b
    Example:
      envgen patch refresh vllm --release 0.16.0 --applies-to '>=0.16.0, <0.17'
    """
    if bool(release) == bool(ref):
        raise UsageError("name where to carry them: --release V or --ref REF")
    if applies_to:
        read_header(f"Applies-To: {applies_to}\n".encode(), "--applies-to")
    target = one_target(session, source)
    bare = Sources(say=progress)
    old = bare.built(target)
    fresh = bare.release(target, release) if release else bare.ref(target, ref or "")
    results = carry(target.series(), old, fresh)
    failed = [result for result in results if result.outcome is Outcome.CONFLICT]
    written = [] if failed or dry_run else _write(target.root, target.folder, results, applies_to)
    rows = [
        {"name": r.patch.name, "outcome": r.outcome.value, "conflicts": r.conflicts, "moved": r.moved} for r in results
    ]
    document = {"source": target.name, "from": old.label, "to": fresh.label, "patches": rows, "written": written}
    answer(document, [f"{target.folder}: {old.label} -> {fresh.label}", *_outcomes(results)])
    if failed:
        progress("nothing was written: one of them conflicts")
        return ExitCode.FINDINGS
    for path in written:
        progress(f"wrote {path}")
    return ExitCode.OK


def _outcomes(results: list[Refreshed]) -> Iterator[str]:
    for result in results:
        where = f", now in {', '.join(result.moved)}" if result.moved else ""
        yield f"  {result.patch.name}: {result.outcome.value}{where}"
        if result.outcome is Outcome.GONE:
            yield f"      hint: retire it with `envgen patch drop {result.patch.name}`, or narrow its Applies-To"
        for file, text in result.conflicts:
            yield f"      {visible(file)}"
            lines = text.splitlines()
            yield from (f"        {visible(line)}" for line in lines[:SHOWN_LINES])
            if len(lines) > SHOWN_LINES:
                yield f"        ... and {len(lines) - SHOWN_LINES} more lines (--json has them all)"


def _write(root: Path, folder: str, results: list[Refreshed], applies_to: str | None) -> list[str]:
    changed: dict[str, bytes] = {}
    for result in results:
        if result.outcome not in (Outcome.CARRIED, Outcome.SAME):
            continue
        head = head_of(result.patch.content)
        if applies_to:
            head = set_field(head, "Applies-To", applies_to)
        if head + result.content != result.patch.content:
            changed[result.patch.name] = head + result.content
    if changed:
        rewrite(root, folder, changed)
    return [f"{folder}/{name}" for name in changed]


@command.command("apply")
@source_argument
@checkout_option
@click.option("-R", "--reverse", is_flag=True, help="Take back what was applied.")
@reporting
def apply(session: Session, source: str | None, checkout: Path | None, reverse: bool) -> int:
    """Apply a series to a mounted checkout, or take it back: all of it, or nothing.

    The checkout must be clean, and for --reverse exactly as the patches left it. No branch is touched.

    \b
    Example:
      envgen patch apply vllm
      envgen patch apply vllm --reverse
    """
    target = one_target(session, source)
    there = Checkout(checkout_of(session.loaded().project, target.name, checkout))
    if reverse:
        manifest = there.reverse()
        names = [patch["name"] for patch in manifest.patches]
        line = f"{there.folder}: {counted(len(names), 'patch', 'patches')} taken back"
        return answer({"checkout": str(there.folder), "reversed": names}, [line])
    bare = there.bare()
    run = dry_run(bare, target.series())
    if not run.ok:
        click.echo("\n".join(report_lines(run)), err=True)
        raise RefusedError("the patches do not fit this checkout; nothing was changed")
    series = target.series().for_version(bare.version)
    if not series.patches:
        raise RefusedError(f"no patch of {target.folder} is for {bare.version}")
    manifest = there.apply(series)
    document = {"checkout": str(there.folder), "applied": list(manifest.patches)}
    line = f"{there.folder}: {counted(len(manifest.patches), 'patch is', 'patches are')} in"
    return answer({**document, "rehearsal": as_document(target.name, run)}, [*report_lines(run), line])


@command.command("drop")
@click.argument("patch")
@source_argument
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go; change nothing.")
@project_options
def drop(session: Session, patch: str, source: str | None, dry_run: bool) -> int:
    """Retire a patch: out of the series, and its file deleted (git has it still).

    \b
    Example:
      envgen patch drop 2 vllm
    """
    target = one_target(session, source)
    file = series_folder.series_file(target.root, target.folder)
    if dry_run:
        names = series_folder.entries(series_folder.listed(file))
        click.echo(f"would delete {target.folder}/{series_folder.choose(names, patch)}")
        return ExitCode.OK
    click.echo(f"deleted {series_folder.remove(target.root, target.folder, patch)}")
    return ExitCode.OK
