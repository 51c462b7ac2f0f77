"""`envgen completion`, and the values that a shell completes: names in the project file.

Prints no errors: they would land in the user's prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from envgen.app.session import Session

VARIABLE = "_ENVGEN_COMPLETE"  # click's name for it


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, profiles, services, variants and sources.

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


class Values(click.types.StringParamType):
    """Text that completes to what ``find`` returns for the command line so far."""

    def __init__(self, find: Callable[[Session], Iterable[str]]) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The values that begin with ``incomplete``."""
        given = ctx.params
        session = Session(given.get("file"), given.get("profile"), given.get("sets") or (), given.get("variant") or "")
        found = [value for value in self._find(session) if value.startswith(incomplete)]
        taken = given.get(param.name or "")
        return [CompletionItem(one) for one in found if not isinstance(taken, tuple) or one not in taken]


def with_values(command: click.Command) -> click.Command:
    """Make the parameters of ``command`` and its sub-commands complete to values."""
    for param in command.params:
        word = (param.metavar or param.name or "").upper()
        find = _BY_NAME.get(param.name or "") or next((find for part, find in _BY_WORD.items() if part in word), None)
        if find and isinstance(param.type, click.types.StringParamType):
            param.type = Values(find)
    for subcommand in getattr(command, "commands", {}).values():
        with_values(subcommand)
    return command


_BY_NAME: dict[str, Callable[[Session], Iterable[str]]] = {
    "profile": lambda session: session.loaded().project.profiles,
    "variant": lambda session: session.profile().variants,
}
_BY_WORD: dict[str, Callable[[Session], Iterable[str]]] = {
    "SERVICE": lambda session: session.profile().services,
    "SOURCE": lambda session: session.profile().sources,
}
