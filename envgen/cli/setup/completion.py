"""`envgen completion`: the script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

VARIABLE = "_ENVGEN_COMPLETE"  # click's name for it


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options.

    \b
    Examples:
      eval "$(envgen completion bash)"                                       # in ~/.bashrc
      eval "$(envgen completion zsh)"                                        # in ~/.zshrc, after compinit
      envgen completion fish >~/.config/fish/completions/envgen.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # BashComplete.source would first run the bash on PATH for its version.
    click.echo(ShellComplete.source(kind(context.find_root().command, {}, "envgen", VARIABLE)), nl=False)
