"""The command line: parsing and printing only, a sub-package for each group of commands.

A command's module is imported when the command is used, so `envgen --help` costs Python plus click.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import click
from click.shell_completion import CompletionItem

from envgen.errors import Output
from envgen.text import Loudness

Groups = dict[str, dict[str, tuple[str, str]]]
# Heading in the help -> name -> (module below envgen.cli, with :name where the command is called otherwise; its line of
# help). The help stands here so that listing the commands imports none of them.
GROUPS: Groups = {
    "Set up": {
        "init": ("project.init", "Write a commented starter project into a folder."),
        "config": ("project.config", "Show the values of a profile, and where each comes from."),
        "completion": ("completion", "Print the script by which bash, zsh or fish completes."),
        "schema": ("project.schema", "Print the JSON Schema of the project file."),
        "render": ("project.render", "Write Dockerfiles, Compose files and .dockerignore."),
        "lock": ("project.lock", "Resolve every input into envgen.lock, or check that it still answers."),
        "model": ("project.model", "Fetch and check the weights that services load."),
        "recipe": ("project.recipe", "Models as data: list, show, add one to the project as a profile."),
        "patch": ("patches.patch", "Try, make and apply patches."),
    },
    "Build": {
        "build": ("images:build", "Render, then build the image of a profile."),
        "pull": ("services.running:pull", "Pull the base image of a profile."),
        "verify": ("images:verify", "Build twice without cache and compare the images down to the byte."),
        "inspect": ("images:inspect", "Print every input of an image, as recorded in the image."),
        "diff": ("images:diff", "Say in which inputs two locks or images differ."),
    },
    "Run": {
        "up": ("services.running:up", "Start services and wait until they really answer."),
        "down": ("services.running:down", "Stop and remove services."),
        "stop": ("services.running:stop", "Stop services; their containers stay."),
        "start": ("services.running:start", "Start stopped services and wait until they answer."),
        "ps": ("services.running:ps", "Show the services of a profile."),
        "logs": ("services.running:logs", "Show the output of services."),
        "restart": ("services.running:restart", "Restart services and wait until they answer."),
        "exec": ("services.running:exec_", "Run a command in a running service."),
        "run": ("services.running:run", "Run a command in a new container of a service's image."),
        "shell": ("services.running:shell", "Open a shell in a running service."),
        "export": ("project.export", "Write the project as other tools read it: Kubernetes, bake, an editor, CI."),
        "nodes": ("services.nodes", "Compare the machines that serve one model together, and make them the same."),
    },
    "Look": {
        "status": ("look.status", "Show profile, image, containers, checkouts and lock on one screen."),
        "doctor": ("look.doctor", "Prove which code the container imports, and what is around it."),
        "predict": ("look.predict", "Ask the release what it would choose on a GPU, without that GPU."),
        "explain": ("look.explain", "Say what a log of a build or a server means: cause, line, cure."),
    },
    "Caches": {
        "cache": ("caches.cache", "List and clear compiled JIT modules, one at a time."),
        "prune": ("caches.prune", "Remove what is left of earlier and killed runs."),
    },
    "Measure": {
        "smoke": ("measure.bench:smoke", "Try a server in small tests."),
        "bench": ("measure.bench:bench", "Measure a server with llama-benchy or `vllm bench serve`."),
        "trace": ("measure.bench:trace", "Trace one request with vLLM's own profiler."),
        "accept": ("measure.bench:accept", "Run the whole acceptance list against a server."),
        "results": ("measure.results", "List, show and compare the records of runs."),
    },
}

# Before the verb or behind it.
LOUDNESS = (
    ("q", "quiet", "Print only results and errors."),
    ("v", "verbose", "Also print each program that is run."),
)


def _louder(_ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        setattr(Loudness, param.name or "", True)


def with_loudness(command: click.Command) -> click.Command:
    """``command`` (and those below it) with -q and -v, but for what it has another meaning for (`ps -q`)."""
    taken = {spelling for param in command.params for spelling in param.opts}
    for letter, name, text in LOUDNESS:
        if free := [spelling for spelling in (f"-{letter}", f"--{name}") if spelling not in taken]:
            command.params.append(
                click.Option([*free, name], is_flag=True, help=text, expose_value=False, callback=_louder)
            )
    for one in getattr(command, "commands", {}).values():
        with_loudness(one)
    return command


class FullGroup(click.Group):
    """A click group whose list of commands cuts no line of help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(500)) for name, one in found if one])


class LazyGroup(click.Group):
    """A click group that knows its commands' names without importing them."""

    groups: ClassVar[Groups] = GROUPS

    def _commands(self) -> dict[str, tuple[str, str]]:
        return {name: row for rows in self.groups.values() for name, row in rows.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands():
            return None
        module, _, name = self._commands()[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), name or "command")
        if ctx.resilient_parsing:  # a shell asks
            from envgen.cli.completion import with_values

            return with_values(with_loudness(found))
        return with_loudness(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._commands() and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self._commands(), 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._commands()))  # so that all columns begin at the same place
        for heading, rows in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), row[1]) for name, row in rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and their help from the table: completing imports no command."""
        found = [
            CompletionItem(name, help=row[1]) for name, row in self._commands().items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from envgen.cli.version import report  # reads the metadata of all packages

        click.echo("\n".join(report()))
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the versions of envgen, Python and what it needs.")  # fmt: skip
def main() -> None:
    """From one YAML file to a proven, running vLLM + FlashInfer container.

    \b
    Example:
      envgen build --profile dev
      envgen up serve
      envgen doctor
      envgen cache clear fused_moe_120
      envgen up -q serve
    """


with_loudness(main)


def run(argv: Sequence[str] | None = None, output: Output | None = None) -> int:
    """Parse ``argv`` (default: ``sys.argv[1:]``) and run it. Returns the exit code; errors pass through.

    ``output`` is told whether the command line asks for JSON, and whether it was printed.
    """
    if os.environ.get("_ENVGEN_COMPLETE"):
        # Whatever goes wrong, errors don't belong into a prompt.
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.suppress(Exception):
            main.main(prog_name="envgen", standalone_mode=False)
        return 0
    words = list(sys.argv[1:] if argv is None else argv)
    output = output or Output()
    try:
        result = main.main(args=words, prog_name="envgen", standalone_mode=False, obj=output)
    except SystemExit:  # click's answer where the reader of a pipe has left
        raise BrokenPipeError from None
    except click.UsageError as error:  # such as an option that there isn't: then no option was looked at
        takes = error.ctx is not None and any(one.name == "as_json" for one in error.ctx.command.params)
        output.json = output.json or (takes and "--json" in words)
        raise
    return result if isinstance(result, int) else 0
