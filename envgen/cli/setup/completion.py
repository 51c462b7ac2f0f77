"""`envgen completion`, and the values that a shell completes: names in the project file, keys of --set, JIT modules.

Prints no errors: they would land in the user's prompt.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from envgen.app.session import Session
from envgen.jitcache.place import CACHE, find_place
from envgen.profile import shape as shapes
from envgen.profile.model import Profile, Variant
from envgen.profile.shape import Shape, fields_of

VARIABLE = "_ENVGEN_COMPLETE"  # click's name for it
PATIENCE = 3.0  # seconds for a container's answer
# Shell built-ins only: runs no program of the container.
_MODULES = 'for m in "$1"/*/cached_ops/*/ "$1"/*/*/cached_ops/*/; do echo "${m%/}"; done'


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, profiles, services, variants, JIT modules and keys.

    \b
    Examples:
      eval "$(envgen completion bash)"                                       # in ~/.bashrc
      eval "$(envgen completion zsh)"                                        # in ~/.zshrc, after compinit
      envgen completion fish >~/.config/fish/completions/envgen.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # BashComplete.source would first run the bash on PATH for its version.
    script = ShellComplete.source(kind(context.find_root().command, {}, "envgen", VARIABLE))
    no_space = "[[ $value == *[.=] ]] && compopt -o nospace"  # after `a.` and `a=` of --set
    click.echo(script.replace("COMPREPLY+=($value)\n", f"COMPREPLY+=($value)\n            {no_space}\n"), nl=False)


class Values(click.types.StringParamType):
    """Text that completes to what ``find`` returns for the command line so far."""

    def __init__(self, find: Callable[[Session], Iterable[str]]) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The values that begin with ``incomplete``, up to their next dot."""
        given = ctx.params
        session = Session(given.get("file"), given.get("profile"), given.get("sets") or (), given.get("variant") or "")
        found: dict[str, None] = {}
        for value in self._find(session):
            if value.startswith(incomplete):
                dot = value.find(".", len(incomplete)) if "=" in value else -1
                found[value if dot < 0 else value[: dot + 1]] = None
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


def keys(profile: Profile) -> Iterator[str]:
    """The keys that --set takes for ``profile``, as ``services.web.ports=``, in the order of the model."""
    return _below(Shape(shapes.RECORD, Profile), profile, "")


def _below(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if shape.kind == shapes.RECORD and shape.type is not Variant:
        for name, field in fields_of(shape.type).items():
            yield from _below(field.shape, getattr(value, name, None), f"{path}.{name}" if path else name)
    elif shape.kind == shapes.MAPPING and shape.inner:
        for name, one in (value or {}).items():
            yield from _below(shape.inner, one, f"{path}.{name}")
    elif shape.kind != shapes.RECORD:
        yield f"{path}="


def _modules(session: Session) -> Iterable[str]:
    """The modules in the cache of a running service."""
    deployment = session.deployment()
    place = find_place(deployment)
    if place is None or place.container is None or CACHE not in deployment.profile.caches:
        return ()
    done = deployment.engine.exec(place.container.id, ["/bin/sh", "-c", _MODULES, "sh", place.root], timeout=PATIENCE)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return sorted({posixpath.basename(line) for line in lines if "*" not in line} - {"tmp"})  # tmp holds the locks


_BY_NAME: dict[str, Callable[[Session], Iterable[str]]] = {
    "profile": lambda session: session.loaded().project.profiles,
    "variant": lambda session: session.profile().variants,
    "sets": lambda session: keys(session.profile()),
}
_BY_WORD: dict[str, Callable[[Session], Iterable[str]]] = {
    "SERVICE": lambda session: session.profile().services,
    "GLOB": _modules,
    "SOURCE": lambda session: session.profile().sources,
}
