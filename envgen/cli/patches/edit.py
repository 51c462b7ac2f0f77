"""`envgen patch new`, `refresh`, `apply` and `drop`: what changes patches or a checkout."""

from __future__ import annotations

from pathlib import Path

import click

from envgen.app.patch_sources import Sources, checkout_of, new_target, one_target
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.patches import folder as series_folder
from envgen.patches import report
from envgen.patches.checkout import Checkout
from envgen.patches.dry_run import dry_run
from envgen.patches.folder import rewrite, set_field
from envgen.patches.header import head_of, read_header
from envgen.patches.refresh import Outcome, Refreshed
from envgen.patches.refresh import refresh as carry
from envgen.text import counted, progress, visible

SHOWN_LINES = 60

source_argument = click.argument("source", required=False)
checkout_option = click.option(
    "--checkout", type=click.Path(path_type=Path), metavar="DIR", help="The checkout (default: what a profile mounts)."
)


@click.command("new")
@click.argument("name")
@source_argument
@checkout_option
@click.option("--only", multiple=True, metavar="PATH", help="Only this file or folder of the checkout.")
@click.option("-m", "--description", default="", help="What it is for, in one line.")
@click.option("--applies-to", metavar="RANGE", help="The versions it is for, as in '>=0.14.0, <0.15'.")
@project_options
def new(
    session: Session,
    name: str,
    source: str | None,
    checkout: Path | None,
    only: tuple[str, ...],
    description: str,
    applies_to: str | None,
) -> int:
    """Make a patch from what was changed in a mounted checkout.

    With patches applied there (`envgen patch apply`), or made there before, from what was changed since. The files of
    the checkout stay as they are. The first patch of a source makes its folder and series.

    \b
    Example:
      envgen patch new faster-moe vllm -m 'Fewer launches in the MoE layers'
    """
    target, missing = new_target(session, source)
    there = Checkout(checkout_of(session.loaded().project, target.name, checkout))
    diff = there.changes(only)
    if not diff:
        raise UsageError(f"nothing is changed in {there.folder}", hint="edit something there first")
    version = there.version or target.version
    fields = {
        "Description": " ".join(description.split()) or name.replace("-", " "),
        "Origin": f"made on {version or there.head[:12]}",
        "Forwarded": "no",
        "Applies-To": applies_to or (f"=={version}" if version else ""),
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


@click.command("refresh")
@source_argument
@click.option("--release", metavar="V", help="Carry to this release.")
@click.option("--ref", metavar="REF", help="Carry to this branch, tag or commit.")
@click.option("--from", "origin", metavar="V", help="The release that they fit now (default: what the profile builds).")
@click.option("--applies-to", metavar="RANGE", help="Write this range into the patches that are carried.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would come out; write nothing.")
@json_option
@project_options
def refresh(
    session: Session,
    source: str | None,
    release: str | None,
    ref: str | None,
    origin: str | None,
    applies_to: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
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
    old = bare.release(target, origin) if origin else bare.built(target)
    fresh = bare.release(target, release) if release else bare.ref(target, ref or "")
    results = carry(target.series(), old, fresh)
    failed = [result for result in results if result.outcome is Outcome.CONFLICT]
    written = [] if failed or dry_run else _write(target.root, target.folder, results, applies_to)
    if as_json:
        rows = [
            {
                "name": r.patch.name,
                "outcome": r.outcome.value,
                "conflicts": [list(pair) for pair in r.conflicts],
                "moved": list(r.moved),
            }
            for r in results
        ]
        print_json({"source": target.name, "from": old.label, "to": fresh.label, "patches": rows, "written": written})
    else:
        click.echo(f"{target.folder}: {old.label} -> {fresh.label}")
        _show(results)
    if failed:
        progress("nothing was written: one of them conflicts")
        return ExitCode.FINDINGS
    for path in written:
        progress(f"wrote {path}")
    return ExitCode.OK


def _show(results: list[Refreshed]) -> None:
    for result in results:
        where = f", now in {', '.join(result.moved)}" if result.moved else ""
        click.echo(f"  {result.patch.name}: {result.outcome.value}{where}")
        if result.outcome is Outcome.GONE:
            click.echo(f"      hint: retire it with `envgen patch drop {result.patch.name}`, or narrow its Applies-To")
        for file, text in result.conflicts:
            click.echo(f"      {visible(file)}")
            lines = text.splitlines()
            for line in lines[:SHOWN_LINES]:
                click.echo(f"        {visible(line)}")
            if len(lines) > SHOWN_LINES:
                click.echo(f"        ... and {len(lines) - SHOWN_LINES} more lines (--json has them all)")


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


@click.command("apply")
@source_argument
@checkout_option
@click.option("-R", "--reverse", is_flag=True, help="Take back what was applied.")
@json_option
@project_options
def apply(session: Session, source: str | None, checkout: Path | None, reverse: bool, as_json: bool) -> int:
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
        if as_json:
            print_json({"checkout": str(there.folder), "reversed": names})
        else:
            click.echo(f"{there.folder}: {counted(len(names), 'patch', 'patches')} taken back")
        return ExitCode.OK
    bare = there.bare()
    run = dry_run(bare, target.series())
    if not run.ok:
        click.echo("\n".join(report.lines(run)), err=True)
        raise RefusedError("the patches do not fit this checkout; nothing was changed")
    series = target.series().for_version(bare.version)
    if not series.patches:
        raise RefusedError(f"no patch of {target.folder} is for {bare.version}")
    manifest = there.apply(series)
    if as_json:
        document = report.as_document(target.name, run)
        print_json({"checkout": str(there.folder), "applied": list(manifest.patches), "rehearsal": document})
    else:
        click.echo("\n".join(report.lines(run)))
        click.echo(f"{there.folder}: {counted(len(manifest.patches), 'patch is', 'patches are')} in")
    return ExitCode.OK


@click.command("drop")
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
