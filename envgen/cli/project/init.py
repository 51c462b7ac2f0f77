"""``envgen init``: a commented starter project."""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path

import click

from envgen import files
from envgen.errors import RefusedError, UsageError
from envgen.paths import templates_dir
from envgen.profile import schema
from envgen.profile.patterns import PROJECT_NAME, matches
from envgen.text import reason_of

_FILES = ("envgen.yaml", ".gitignore")
_NAME_MARK = "starter-project"  # the name in templates/init/envgen.yaml


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", metavar="NAME", help="The project's name (default: made from the folder's).")
def command(folder: Path, name: str | None) -> None:
    """Write a commented starter project into DIR.

    Files that are there stay as they are; an existing .gitignore gets the lines that it lacks.

    \b
    Example:
      envgen init ~/projects/serving --name gpt-oss
    """
    chosen = name if name is not None else _name_of(folder)
    if not matches(PROJECT_NAME, chosen):
        hint = "small letters and digits, with single - or _ between them; --name sets another"
        raise UsageError(f"{chosen!r} is not a project name", hint=hint)
    if (folder / "envgen.yaml").exists() or (folder / "envgen.yaml").is_symlink():
        raise RefusedError(f"{folder / 'envgen.yaml'} is there already", hint="choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{folder} cannot be made: {reason_of(error).lower()}") from None
    templates = templates_dir() / "init"
    texts = {file: (templates / file.lstrip(".")).read_text(encoding="utf-8") for file in _FILES}
    texts["envgen.yaml"] = texts["envgen.yaml"].replace(_NAME_MARK, chosen)
    texts[schema.FILE_NAME] = schema.text()
    for file, text in texts.items():
        if file == ".gitignore" and (folder / file).exists():
            added = complete(folder / file, text)
            click.echo(f"added {', '.join(added)} to {folder / file}" if added else f"kept {folder / file}", err=True)
            continue
        if file != "envgen.yaml" and (folder / file).exists():
            click.echo(f"kept {folder / file}", err=True)
            continue
        write_file(folder / file, text)
        click.echo(f"wrote {folder / file}", err=True)
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"next: {go}envgen config --explain", err=True)


def _name_of(folder: Path) -> str:
    """A project name made from the folder's own."""
    text = unicodedata.normalize("NFKD", folder.resolve().name.lower())
    text = "".join(c for c in text if not unicodedata.combining(c))
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in text).split()
    return "-".join(words)[:40].strip("-") or "project"


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


def write_file(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Write ``path`` whole or not at all; without ``overwrite`` an existing file is never touched."""
    try:
        files.write(path, text.encode(), new=not overwrite)
    except FileExistsError:
        raise RefusedError(f"{path} is there already", hint="nothing was changed") from None
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {reason_of(error).lower()}") from None
