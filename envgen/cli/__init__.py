"""The command line. One file a verb; parsing and printing only.

A verb's module is imported when the verb is used, so `envgen --help` costs Python plus click.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import ClassVar

import click

# name -> (module, attribute, one line of help). The help stands here so that listing the verbs imports none of them.
VERBS: dict[str, tuple[str, str, str]] = {
    "init": ("envgen.cli.init", "command", "Write a commented starter project into a folder."),
    "config": ("envgen.cli.config", "command", "Show the values of a profile, and where each comes from."),
    "schema": ("envgen.cli.schema", "command", "Print the JSON Schema of the project file."),
    "render": ("envgen.cli.render", "command", "Write Dockerfiles, Compose files and .dockerignore."),
    "lock": ("envgen.cli.lock", "command", "Resolve every input into envgen.lock, or check that it still answers."),
    "verify": ("envgen.cli.verify", "command", "Build twice without cache and compare the images down to the byte."),
    "inspect": ("envgen.cli.inspect", "command", "Print every input of an image, as the image itself tells it."),
    "diff": ("envgen.cli.diff", "command", "Say in which inputs two locks or images differ."),
    "model": ("envgen.cli.model", "command", "Fetch and check the weights that services load."),
    "build": ("envgen.cli.build", "command", "Render, then build the image of a profile."),
    "predict": ("envgen.cli.predict", "command", "Ask the release what it would choose on a GPU, without that GPU."),
    "up": ("envgen.cli.up", "command", "Start a service and wait until it really answers."),
    "down": ("envgen.cli.services", "down", "Stop and remove the services of a profile."),
    "ps": ("envgen.cli.services", "ps", "Show the services of a profile."),
    "logs": ("envgen.cli.services", "logs", "Show the output of a service."),
    "restart": ("envgen.cli.services", "restart", "Restart a service and wait until it answers."),
    "exec": ("envgen.cli.services", "exec_", "Run a command in a running service."),
    "shell": ("envgen.cli.services", "shell", "Open a shell in a running service."),
    "smoke": ("envgen.cli.smoke", "command", "Try a server in five small tests."),
    "stress": ("envgen.cli.stress", "command", "Put a server under load: nothing may fail or pile up."),
    "bench": ("envgen.cli.bench", "command", "Measure prefill, decode and latency of a server."),
    "accept": ("envgen.cli.accept", "command", "Run the whole acceptance list against a server."),
    "patch": ("envgen.cli.patch", "command", "Rehearse, make, carry over, apply and retire patches."),
    "doctor": ("envgen.cli.doctor", "command", "Prove which code the container imports, and what is around it."),
    "results": ("envgen.cli.results", "command", "List, show and compare the records of runs; import older figures."),
    "explain": ("envgen.cli.explain", "command", "Say what a log of a build or a server means: cause, line, cure."),
    "prune": ("envgen.cli.prune", "command", "Remove what is left of earlier and killed runs."),
    "cache": ("envgen.cli.cache", "command", "List and clear compiled JIT modules, one at a time."),
}


class LazyGroup(click.Group):
    """A click group that knows its commands' names without importing them."""

    verbs: ClassVar[dict[str, tuple[str, str, str]]] = VERBS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        module, attribute, _ = self.verbs[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.verbs, 1)
            raise click.UsageError(
                f"no such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb[2]) for name, verb in self.verbs.items()])


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from envgen import __version__

        click.echo(f"envgen {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def main() -> None:
    """From one YAML file to a proven, running vLLM + FlashInfer container.

    \b
    Example:
      envgen build --profile dev
      envgen up serve
      envgen doctor
      envgen cache clear fused_moe_120
    """


def run(argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` (default: ``sys.argv[1:]``) and run it. Returns the exit code; errors pass through."""
    result = main.main(args=list(argv) if argv is not None else None, prog_name="envgen", standalone_mode=False)
    return result if isinstance(result, int) else 0
