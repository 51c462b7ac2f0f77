"""`envgen render`: write, check or print the rendered files."""

from __future__ import annotations

from pathlib import Path

import click

from envgen.cli.common import Session, json_option, print_json, progress, project_options


@click.command()
@project_options
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a unified diff where a file has drifted.")
@click.option("--stdout", is_flag=True, help="Print the files instead of writing them.")
@json_option
def command(session: Session, check: bool, stdout: bool, as_json: bool) -> int:
    """Write Dockerfiles, Compose files and .dockerignore from the project file.

    envgen.local.yaml and ENVGEN_ variables are left out: what is committed is the same on every machine.

    \b
    Example:
      envgen render
      envgen render --check
      envgen render -p prod --stdout --set cuda.arch_list=12.1f
    """
    from envgen.errors import ExitCode, UsageError

    if check and stdout:
        raise UsageError("--check and --stdout exclude each other")
    if session.sets and not (stdout and session.profile_name):
        raise UsageError("--set would not reach the committed files", hint="use it with --stdout and -p PROFILE")
    from envgen.render import outputs

    files, root = _files(session, alone=stdout)
    if stdout:
        _print(files, as_json)
        return ExitCode.OK
    if check:
        return _check(outputs.diff(root, files), files, as_json)
    written = outputs.write(root, files)
    if as_json:
        print_json({"written": written, "unchanged": sorted(set(files) - set(written))})
    for path in written:
        progress(f"wrote {path}")
    if not written:
        progress(f"{len(files)} files are up to date")
    return ExitCode.OK


def _files(session: Session, *, alone: bool) -> tuple[dict[str, bytes], Path]:
    """The files to write, check or print, and the project's folder."""
    from envgen.render import outputs
    from envgen.render.whole import Whole, nearest

    file = nearest(session.file)
    whole = Whole(file) if file and not session.profile_name and not session.sets else None
    if whole and (known := whole.files()) is not None:
        return known, whole.root
    project = session.loaded(local=False).project
    chosen = session.profile(local=False) if session.profile_name else None
    if alone and chosen:  # so that an override of it may break what other profiles render
        from envgen.render.locked import lock_of

        return dict(
            outputs.render_profile(chosen, lock_of(chosen, project.root), root=project.root).files
        ), project.root
    files = outputs.render_project(project, only=chosen.name if chosen else None)
    if whole and not session.loaded(local=False).warnings:
        whole.remember(project, files)
    return files, project.root


def _print(files: dict[str, bytes], as_json: bool) -> None:
    if as_json:
        print_json({path: content.decode() for path, content in files.items()})
        return
    for path, content in sorted(files.items()):
        click.echo(f"# --- {path}")
        click.echo(content.decode(), nl=False)


def _check(drift: str, files: dict[str, bytes], as_json: bool) -> int:
    from envgen.errors import ExitCode

    if as_json:
        print_json({"drift": drift, "files": sorted(files)})
    elif drift:
        click.echo(drift, nl=False)
    if drift:
        progress("the committed files have drifted from the project file: run `envgen render`")
        return ExitCode.FINDINGS
    progress(f"{len(files)} files are up to date")
    return ExitCode.OK
