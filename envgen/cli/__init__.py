"""The command line: parsing and printing only, a sub-package for each group of commands.

A command's module is imported when the command is used, so `envgen --help` costs Python plus click.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import ClassVar

import click
from click.shell_completion import CompletionItem

from envgen import __version__
from envgen.cli import typed
from envgen.errors import OutputMode
from envgen.text import Verbosity, did_you_mean

# Heading: folder, and below it commands: their line of help. A command has a file, with the function
# `command`. The lines are here so that `envgen --help` imports no command.
_ROWS = """\
Set up: setup
init: Write a commented starter project.
config: Show the values of a profile, and their origin.
render: Write Dockerfiles, Compose files and .dockerignore.
lock: Write envgen.lock, or check that it is current.
model: Download and check model weights.
recipe: List model recipes, or add one to the project.
patch: Test and create patches.
export: Write files for systemd or an editor.

Build: build
build: Build the image of a profile.

Run: run
up: Start services and wait until they answer.
down: Stop and remove services.
stop, restart: Stop or restart services.
ps, logs: List services, or show their output.
upgrade, bisect: Try a new release, or find a change that broke it.
exec, run: Run a command in a container of a service.
nodes: Compare the machines that serve one model.

Check and clean up: check
status: Show image, containers, caches and lock.
doctor: Check the setup, and which code a container imports.
predict: Ask vLLM which kernels it would choose on a GPU.
explain: Find the cause of a failure in a log, and the fix.
cache: List, explain, clear and compile JIT kernels.
prune: Remove leftovers of earlier runs.

Measure: measure
smoke: Check a server: quickly, or under load.
answers, sweep: Compare answers: with a reference, or by variant.
bench: Benchmark a server.
trace: Show which kernels take a token's time.
results: List and compare recorded runs.
"""
Groups = dict[str, tuple[str, dict[str, str]]]
GROUPS: Groups = {}
for _rows in _ROWS.split("\n\n"):
    _head, *_lines = _rows.splitlines()
    _heading, _, _folder = _head.partition(": ")
    _texts = (_line.partition(": ") for _line in _lines)
    GROUPS[_heading] = _folder, {_names: _text for _names, _, _text in _texts}


def _louder(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    Verbosity.on |= value


def with_verbose(command: click.Command) -> click.Command:
    """Add -v, which works before and after the command, to it and its sub-commands (without the
    letter to `down`).
    """
    typed.prepare(command)
    taken = {spelling for param in command.params for spelling in param.opts}
    if "--verbose" not in taken:
        spellings = [spelling for spelling in ("-v", "--verbose") if spelling not in taken]
        text = "Print each program that is run."
        command.params.append(
            click.Option(spellings, is_flag=True, help=text, expose_value=False, callback=_louder)
        )
    for subcommand in getattr(command, "commands", {}).values():
        with_verbose(subcommand)
    return command


class FullGroup(click.Group):
    """A click group that shows the whole help line of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = sorted(self.commands.items())
            formatter.write_dl([(name, command.get_short_help_str(500)) for name, command in rows])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.ctx or error.ctx.parent or error.option_name not in typed.ANSWERS:
                message = f"{error.option_name} goes after the command, as in `envgen up -p dev`, or is not an option"
                raise click.UsageError(message, ctx) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        above = f"{ctx.info_name} " if ctx.parent else ""
        for word in args[:1]:
            if word not in known and not word.startswith("-"):
                similar = typed.ANSWERS.get(above + word) or did_you_mean(known, word)
                raise click.UsageError(f"no such command {word!r}. {similar}".rstrip(), ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(FullGroup):
    """The top group: it lists its commands without importing them."""

    groups: ClassVar[Groups] = GROUPS

    def _commands(self) -> dict[str, tuple[str, str]]:
        """Command -> its module, and its line of help."""
        commands = dict[str, tuple[str, str]]()
        for folder, rows in self.groups.values():
            for names, text in rows.items():
                commands |= {
                    name: (f"{__name__}.{folder}.{name}", text) for name in names.split(", ")
                }
        return commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands():
            return None
        command: click.Command = importlib.import_module(self._commands()[cmd_name][0]).command
        command.name = cmd_name  # each module calls its own `command`
        return with_verbose(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = 0  # of one column for all groups
        for _, rows in self.groups.values():
            width = max([width, *map(len, rows)])
        for heading, (_, rows) in self.groups.items():
            lines = []
            for names, text in rows.items():
                lines.append((names.ljust(width), text))
            with formatter.section(heading):
                formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and their help from the table: completing imports no command."""
        items = [
            CompletionItem(name, help=row[1])
            for name, row in self._commands().items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, "-V", "--version", prog_name="envgen", message="%(prog)s %(version)s"
)
def main() -> None:
    """Build and run vLLM + FlashInfer containers from one YAML file.

    \b
    envgen build --profile dev         the image of a profile
    envgen up serve                    start a service; what it lacks is made first
    envgen doctor                      is the right code imported? what is wrong, and its fix
    envgen cache clear fused_moe_120   have one kernel of FlashInfer compiled again

    \b
    Completion, in ~/.bashrc: eval "$(_ENVGEN_COMPLETE=bash_source envgen)"   (or zsh_source,
    fish_source)
    """


with_verbose(main)


def run_line(argv: Sequence[str] | None = None, output: OutputMode | None = None) -> int:
    """Parse ``argv`` (default: ``sys.argv[1:]``) and run it. Returns the exit code; errors pass
    through.

    ``output`` records whether the command line asks for JSON, and whether it was printed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    output = output or OutputMode()
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    words[:1] = [typed.VERBS.get(word, word) for word in words[:1]]
    try:
        result = main.main(args=words, prog_name="envgen", standalone_mode=False, obj=output)
    except SystemExit:  # click turns EPIPE into this, and ends a completion so
        raise BrokenPipeError from None
    except click.UsageError as error:  # the callback of --json may not have run
        takes_json = error.ctx is not None and any(
            param.name == "as_json" for param in error.ctx.command.params
        )
        output.json = output.json or (takes_json and "--json" in words)
        raise typed.answered(error) from None
    return result if isinstance(result, int) else 0
