"""`envgen patch`: the patches of a project's sources."""

from __future__ import annotations

from pathlib import Path

import click

from envgen.app.patch_sources import (
    NewPatch,
    checkout_of,
    find_targets,
    new_target,
)
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, ask, flag, option, project_options, reporting
from envgen.errors import ExitCode, UsageError
from envgen.patches.checkout import Checkout, command_for, lacking
from envgen.patches.dry_run import as_document, dry_run, report_lines
from envgen.patches.series import Series, add
from envgen.text import progress


@click.group(cls=FullGroup)
def command() -> None:
    """Test and create patches.

    \b
    Examples:
      envgen patch check
      envgen patch check vllm --ref v0.16.0
      envgen patch new faster-moe vllm
    """


@command.command("check")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@option("--ref", "REF", "Test against a branch, tag or commit of the source's repository.")
@reporting
def check(session: Session, sources: tuple[str, ...], ref: str | None) -> int:
    """Test whether patches apply to their sources, without building anything.

    Without --ref, the versions that the profiles build, and the mounted checkouts, are tested. A
    wheel is read from the package index (the few files that are patched), a repository from a
    mounted checkout that has the release, else from its server. Says which patches a mounted
    checkout lacks. Exits with 1 if a build would fail.

    \b
    Examples:
      envgen patch check
      envgen patch check vllm --ref v0.16.0
    """
    code = ExitCode.OK
    documents = []
    lines = []
    for target in find_targets(session, sources):
        name = target.name
        folder = target.mounted
        if folder is not None and not folder.is_dir():
            progress(
                f"note: {folder} is not there, so {name} of {target.profile.name} is not tested"
            )
            continue
        series = target.series()
        run = dry_run(target.unpatched(ref or ""), series, mounted=folder is not None)
        lines += report_lines(run)
        lacks = lacking(target.profile, target.root).get(name, ()) if not ref else ()
        if lacks:
            lines.append(f"  {folder} lacks {', '.join(lacks)}; it gets what is lacking by:")
            lines.append(f"    {command_for(target.source, str(folder), lacks)}")
        documents.append({**as_document(name, run), "lacking": lacks})
        if not run.ok:
            code = ExitCode.FINDINGS
    return answer({"rehearsals": documents}, lines, code)


source_argument = click.argument("source", required=False)
checkout_option = option(
    "--checkout", "DIR", "The checkout (default: the mounted one).", type=click.Path(path_type=Path)
)


@command.command("new")
@click.argument("name")
@source_argument
@checkout_option
@click.option("-m", "--description", default="", help="The purpose, in one line.")
@flag("-y, --yes", "Write `patches: NAME` into the project file where it is missing.")
@project_options
def new(
    session: Session,
    name: str,
    source: str | None,
    checkout: Path | None,
    description: str,
    yes: bool,
) -> int:
    """Create a patch from the changes in a mounted checkout. The checkout stays as it is.

    Changes that earlier patches of the series made there are left out, and what installations
    write. The first patch of a source creates its folder and its `series` file, and asks to write
    `patches: SOURCE` into the profile that your development profile extends. The patch is for this
    release and later ones: where it no longer fits, a build fails.

    \b
    Examples:
      envgen patch new faster-moe vllm -m 'Fewer launches in the MoE layers'
      envgen patch new my-kernel flashinfer --yes
    """
    place = new_target(session, source, name)
    target = place.target
    there = Checkout(checkout_of(target, checkout))
    diff = _changes(there, target.series(begun=False).for_version(there.version))
    version = there.version or target.version
    fields = {
        "Description": " ".join(description.split()) or name.replace("-", " "),
        "Origin": f"made on {version or there.head[:12]}",
        "Forwarded": "no",
        "Applies-To": f">={version}" if version else "",
        "Verified": "not yet",
    }
    head = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    path = add(target.root, target.folder, name, head, diff)
    click.echo(path)
    _tell_takers(place, fields["Applies-To"], yes)
    return ExitCode.OK


def _tell_takers(place: NewPatch, applies_to: str, yes: bool) -> None:
    """Say which profiles take the patch, and name its series in the next one."""
    name = place.target.name
    series = place.target.source.patches
    taker = place.next_taker()
    line = f"`patches: {series}` into sources.{name} of profile {taker}"
    taken = place.takers(applies_to)
    if taker and (yes or ask(f"Write {line} in {place.project.file.name}?")):
        place.name_series(taker)
        progress(f"wrote {line}")
        taken.append(taker)
    elif taker:
        progress(
            f"write {line} in {place.project.file.name}, and its builds apply it (`--yes` does that)"
        )
    release = f" {applies_to.removeprefix('>=')} and later" if applies_to else " every version"
    progress(f"for{release} (Applies-To); taken by {', '.join(taken) or 'no profile yet'}")
    if taken:
        image = place.image_of()
        image = image if image in taken else taken[-1]
        progress(f"into an image: envgen up -p {image} --build --yes")


def _changes(there: Checkout, series: Series) -> bytes:
    diff, left = there.changes(series)
    if shown := [name for name in left if "__pycache__/" not in name]:
        more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
        progress(f"left out, because a build writes them: {', '.join(shown[:8])}{more}")
    if not diff:
        raise UsageError(
            f"nothing has changed in {there.folder}", hint="edit the source there first"
        )
    return diff
