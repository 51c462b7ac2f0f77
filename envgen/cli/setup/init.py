"""``envgen init``: a commented starter project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from envgen import files
from envgen.cli.common import answer, json_option, option
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.files import data_dir
from envgen.profile import schema
from envgen.profile.load import as_name
from envgen.profile.shape import PROJECT_NAME, matches

_FILES = ("envgen.yaml", ".gitignore", "AGENTS.md")
_NAME_MARK = "starter-project"  # the name in templates/init/envgen.yaml


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=".")
@option("--name", "NAME", "The project's name (default: the name of DIR).")
@json_option
def command(folder: Path, name: str | None) -> int:
    """Write a commented starter project into DIR (default: this folder): one profile serves a model, another mounts your
    checkouts.

    Existing files are kept. Missing lines are appended to an existing .gitignore. AGENTS.md tells
    an assistant how to work here.

    \b
    Example:
      envgen init ~/projects/serving --name gpt-oss
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder")
    chosen = name if name is not None else as_name(folder.resolve().name)
    if not matches(PROJECT_NAME, chosen):
        hint = "small letters and digits, with single - or _ between them; --name sets another"
        raise UsageError(f"{chosen!r} is not a project name", hint=hint)
    if (folder / "envgen.yaml").exists() or (folder / "envgen.yaml").is_symlink():
        raise RefusedError(f"{folder / 'envgen.yaml'} already exists", hint="choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _starter(folder, chosen)
    except OSError as error:
        raise files.trouble(error) from None
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    answer({"written": written, "folder": str(folder)}, ())
    click.echo(f"next: {go}envgen up serve", err=True)
    return ExitCode.OK


def _starter(folder: Path, chosen: str) -> list[str]:
    """Write the starter's files that do not exist yet. Returns their names."""
    written = []
    templates = data_dir("templates") / "init"
    texts = {}
    for file in _FILES:
        template = templates / file.lstrip(".")
        text = template.read_text(encoding="utf-8")
        texts[file] = text.replace(_NAME_MARK, chosen)
    texts[schema.FILE_NAME] = schema.text()
    for file, text in texts.items():
        path = folder / file
        done = "kept"
        if not path.exists() or file == "envgen.yaml":
            files.write(path, text.encode(), new=True)
            written.append(file)
            done = "wrote"
        elif file == ".gitignore" and (added := add_missing(path, text)):
            done = f"added {', '.join(added)} to"
        click.echo(f"{done} {path}", err=True)
    return written


def add_missing(path: Path, wanted: str) -> list[str]:
    """Append the patterns of ``wanted`` that the ignore file ``path`` lacks. Returns them."""
    before = files.read(path, follow=False).decode("utf-8", "surrogateescape")
    have = {line.strip().strip("/") for line in before.splitlines()}
    missing = []
    heading = ""
    for line in wanted.splitlines():
        if line.startswith("#"):
            heading = heading or f"{line}\n"
        elif line and line.strip("/") not in have:
            missing.append(line)
    if not missing:
        return []
    gap = ""
    if before:
        gap = "\n" if before.endswith("\n") else "\n\n"
    lines = "\n".join(missing)
    text = f"{before}{gap}{heading}{lines}\n"
    files.write(path, text.encode("utf-8", "surrogateescape"))
    return missing
