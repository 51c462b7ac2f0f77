"""``envgen init``: a commented starter project."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from envgen import files
from envgen.app.move_in import draft_of, write, write_file
from envgen.cli.common import answer, json_option
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.files import data_dir
from envgen.profile import schema
from envgen.profile.load import as_instance
from envgen.profile.shape import PROJECT_NAME, matches
from envgen.text import counted, reason_of

_FILES = ("envgen.yaml", ".gitignore")
_NAME_MARK = "starter-project"  # the name in templates/init/envgen.yaml


@click.command()
@click.argument("paths", metavar="[DIR] [DOCKERFILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="The project's name (default: made from the folder's).")
@click.option("--from", "source", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A Compose file or a recipe to begin with; Dockerfiles may follow.")  # fmt: skip
@json_option
def command(paths: tuple[Path, ...], name: str | None, source: Path | None) -> int:
    """Write a commented starter project into DIR.

    Files that are there stay as they are; an existing .gitignore gets the lines that it lacks.
    With --from, the project is what an existing Compose file, or a recipe of eugr's or sparkrun, describes; DIR is
    that file's folder unless it is named (docs/moving-in.md). Nothing is run. What has no place is listed, with its
    line. Ends with 1 when the project does not load yet.

    \b
    Examples:
      envgen init ~/projects/serving --name gpt-oss
      envgen init --from compose.yaml Dockerfile
    """
    dockerfiles = [path for path in paths if source is not None and path.is_file()]
    folders = [path for path in paths if path not in dockerfiles]
    if len(folders) > 1 or not (folders or source):
        message = "name one folder" if folders else "name the folder: `envgen init DIR`"
        raise UsageError(message, hint="with --from FILE it is that file's, and Dockerfiles may follow")
    folder = folders[0] if folders else source.parent if source else Path()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder")
    chosen = name if name is not None else as_instance(folder.resolve().name)
    if not matches(PROJECT_NAME, chosen):
        hint = "small letters and digits, with single - or _ between them; --name sets another"
        raise UsageError(f"{chosen!r} is not a project name", hint=hint)
    if (folder / "envgen.yaml").exists() or (folder / "envgen.yaml").is_symlink():
        raise RefusedError(f"{folder / 'envgen.yaml'} is there already", hint="choose another folder")
    draft = draft_of(source, dockerfiles, folder, chosen, fixed=name is not None) if source else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{folder} cannot be made: {reason_of(error).lower()}") from None
    moved = None
    if draft is not None and source is not None:
        moved = write(draft, " and ".join(path.name for path in (source, *dockerfiles)), folder)
        for file in moved.written:
            click.echo(f"wrote {folder / file}", err=True)
    written = _starter(folder, chosen, [file for file in _FILES if moved is None or file != "envgen.yaml"])
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    found = asdict(moved) if moved else {"unplaced": [], "services": {}, "broken": ""}
    found |= {"written": [*(moved.written if moved else ()), *written], "folder": str(folder)}
    answer(found, map(str, moved.unplaced) if moved else ())
    if moved is None:
        click.echo(f"next: {go}envgen config --explain", err=True)
        return ExitCode.OK
    if moved.broken:
        click.echo(f"{folder / 'envgen.yaml'} does not load yet:\n{moved.broken}", err=True)
        return ExitCode.FINDINGS
    count = counted(len(moved.unplaced), "thing has", "things have")
    click.echo(f"{count} no place in it{': see above, and the end of envgen.yaml' if moved.unplaced else ''}", err=True)
    click.echo(f"next: {go}envgen render && envgen diff --with {_from(folder, source)}", err=True)
    return ExitCode.OK


def _from(folder: Path, source: Path | None) -> str:
    """The Compose file as it is named in the project's folder."""
    path = source.resolve() if source else Path()
    return shlex.quote(path.name if path.parent == folder.resolve() else str(path))


def _starter(folder: Path, chosen: str, names: list[str]) -> list[str]:
    """Write the starter's files that are not there yet; their names."""
    written = []
    templates = data_dir("templates") / "init"
    texts = {file: (templates / file.lstrip(".")).read_text(encoding="utf-8") for file in names}
    texts = {file: text.replace(_NAME_MARK, chosen) for file, text in texts.items()}
    for file, text in {**texts, schema.FILE_NAME: schema.text()}.items():
        path, done = folder / file, "kept"
        if not path.exists() or file == "envgen.yaml":
            write_file(path, text)
            written.append(file)
            done = "wrote"
        elif file == ".gitignore" and (added := complete(path, text)):
            done = f"added {', '.join(added)} to"
        click.echo(f"{done} {path}", err=True)
    return written


def complete(path: Path, wanted: str) -> list[str]:
    """Append the patterns of ``wanted`` that the ignore file ``path`` lacks, and return them."""
    try:
        there = files.read(path, follow=False).decode("utf-8", "surrogateescape")
        have = {line.strip().strip("/") for line in there.splitlines()}
        lines = [line for line in wanted.splitlines() if line and not line.startswith("#")]
        missing = [line for line in lines if line.strip("/") not in have]
        if missing:
            gap = "" if not there else "\n" if there.endswith("\n") else "\n\n"
            heading = next((line for line in wanted.splitlines() if line.startswith("#")), "")
            added = "\n".join([*([gap + heading] if heading else []), *missing, ""])
            files.write(path, (there + added).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise RefusedError(f"{path} cannot be completed: {reason_of(error).lower()}") from None
    return missing
