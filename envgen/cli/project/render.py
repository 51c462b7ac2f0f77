"""`envgen render`: write, check or print the rendered files."""

from __future__ import annotations

import os
from pathlib import Path

import click

from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.errors import ExitCode, Place, Problem, RefusedError, UsageError, as_annotations
from envgen.render import outputs
from envgen.render.locking import lock_of
from envgen.render.outputs import render_profile
from envgen.text import counted, progress


@click.command()
@project_options
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a unified diff where a file has drifted.")
@click.option("--stdout", is_flag=True, help="Print the files instead of writing them.")
@click.option("--force", is_flag=True, help="Overwrite files that envgen did not write; each is kept as FILE.orig.")
@json_option
def command(session: Session, check: bool, stdout: bool, force: bool, as_json: bool) -> int:
    """Write Dockerfiles, Compose files and .dockerignore from the project file.

    envgen.local.yaml and ENVGEN_ variables are left out: what is committed is the same on every machine.
    Files that envgen did not write are not overwritten without --force.

    \b
    Example:
      envgen render
      envgen render --check
      envgen render -p prod --stdout --set cuda.arch_list=12.1f
    """
    if check and stdout:
        raise UsageError("--check and --stdout exclude each other")
    if session.sets and not (stdout and session.profile_name):
        raise UsageError("--set would not reach the committed files", hint="use it with --stdout and -p PROFILE")
    files, root = _files(session, alone=stdout)
    if stdout:
        _print(files, as_json)
        return ExitCode.OK
    if check:
        return _check(root, files, as_json)
    kept = _make_way(root, files, force=force)
    written = outputs.write(root, files)
    if as_json:
        print_json({"written": written, "unchanged": sorted(set(files) - set(written)), "kept": kept})
    for path in written:
        progress(f"wrote {path}")
    if not written:
        progress(f"{counted(len(files), 'file is', 'files are')} up to date")
    return ExitCode.OK


def _files(session: Session, *, alone: bool) -> tuple[dict[str, bytes], Path]:
    """The files to write, check or print, and the project's folder."""
    project = session.loaded(local=False).project
    chosen = session.profile(local=False) if session.profile_name else None
    if alone and chosen:  # so that an override of it may break what other profiles render
        return dict(render_profile(chosen, lock_of(chosen, project.root), root=project.root).files), project.root
    return outputs.render_project(project, only=chosen.name if chosen else None), project.root


def _print(files: dict[str, bytes], as_json: bool) -> None:
    if as_json:
        print_json({path: content.decode() for path, content in files.items()})
        return
    for path, content in sorted(files.items()):
        click.echo(f"# --- {path}")
        click.echo(content.decode(), nl=False)


def _make_way(root: Path, files: dict[str, bytes], *, force: bool) -> list[str]:
    """Refuse to overwrite what envgen did not write; with ``force`` keep a copy of each, and return the copies."""
    foreign = outputs.foreign(root, files)
    if foreign and not force:
        raise RefusedError(
            f"not written by `envgen render`, so not overwritten: {', '.join(foreign)}",
            hint="move them away, give the profile another `dockerfile:`, or run `envgen render --force`, "
            "which keeps each as FILE.orig",
        )
    kept = outputs.keep_originals(root, foreign)
    for path in kept:
        progress(f"kept {path}")
    return kept


def _check(root: Path, files: dict[str, bytes], as_json: bool) -> int:
    drift, foreign = outputs.diff(root, files), outputs.foreign(root, files)
    if as_json:
        print_json({"drift": drift, "files": sorted(files), "foreign": foreign})
    elif drift:
        click.echo(drift, nl=False)
    drifted = [os.path.relpath(root / path) for path in files if drift and outputs.diff(root, {path: files[path]})]
    wrong = "is not what the project file renders to"
    for line in as_annotations(Problem(wrong, Place(path), "envgen render") for path in drifted):
        progress(line, always=True)
    if foreign:
        progress(
            f"not written by `envgen render`: {', '.join(foreign)}; `envgen render --force` keeps each as FILE.orig"
        )
        return ExitCode.FINDINGS
    if drift:
        progress("the committed files have drifted from the project file: run `envgen render`")
        return ExitCode.FINDINGS
    progress(f"{counted(len(files), 'file is', 'files are')} up to date")
    return ExitCode.OK
