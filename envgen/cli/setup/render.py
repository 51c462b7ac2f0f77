"""`envgen render`: write, check or print the rendered files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from envgen.app.session import Session
from envgen.cli.common import answer, flag, reporting, warn_of_unused
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.profile.compose_file import own_file
from envgen.profile.load import require_alone
from envgen.render import outputs
from envgen.render.locking import left_out, lock_of, series_of
from envgen.text import counted, progress

_FOREIGN = "not written by `envgen render`"
_AWAY = "move them away, or give the profile another `dockerfile:`"


@click.command()
@reporting
@flag("--check", "Write nothing; print a diff and exit with 1 if a file has drifted.")
def command(session: Session, check: bool) -> int:
    """Write Dockerfiles, Compose files and .dockerignore from the project file.

    Without --profile, for all profiles. envgen.local.yaml and ENVGEN_ variables are ignored, so
    that the files are the same on every machine; what `up` uses with them is in
    .envgen/render/PROFILE. Rendered files are overwritten, with edits in them; a file that envgen
    did not write never is. Files of a profile that no longer exists stay: `git rm` removes them.

    \b
    Example:
      envgen render --check
    """
    if session.sets:
        raise UsageError(
            "--set has no effect on committed files", hint="`envgen up --set ...` uses it"
        )
    project = session.loaded(local=False).project
    chosen = session.profile(local=False) if session.profile_name else None
    root = project.root
    warn_of_unused(session, local=False)
    for profile in [chosen] if chosen else project.profiles.values():
        own_file(profile, root)
        for line in left_out(profile, lock_of(profile, root), series_of(profile, root)):
            progress(f"note: {line}")
    require_alone(project)
    files = outputs.render_project(project, only=chosen.name if chosen else None)
    foreign = outputs.foreign(root, files)
    if check:
        return _check(root, files, foreign)
    if foreign:
        raise RefusedError(f"{_FOREIGN}, so not overwritten: {', '.join(foreign)}", hint=_AWAY)
    written = outputs.write(root, files)
    answer({"written": written, "unchanged": sorted(set(files) - set(written))})
    for path in written:
        progress(f"wrote {path}")
    if not written:
        progress(f"{counted(len(files), 'file is', 'files are')} up to date")
    return ExitCode.OK


def _check(root: Path, files: Mapping[str, bytes], foreign: list[str]) -> int:
    text = outputs.diff(root, files)
    document = {"drift": text, "files": sorted(files), "foreign": foreign}
    answer(document, [text.removesuffix("\n")] if text else ())
    if foreign:
        progress(f"{_FOREIGN}: {', '.join(foreign)}; {_AWAY}")
    elif text:
        progress("the committed files have drifted from the project file: run `envgen render`")
    else:
        progress(f"{counted(len(files), 'file is', 'files are')} up to date")
    return ExitCode.FINDINGS if foreign or text else ExitCode.OK
