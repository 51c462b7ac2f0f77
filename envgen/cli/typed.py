"""What people type who come from Compose, Docker, uv and sparkrun: data, one line each.

Letter distance answers only where nothing stands here.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem

_ROWS = """\
up -d, --detach, --wait
run --rm, -i, --interactive
exec -i, --interactive
down --remove-orphans
"""
# Options that say what a command does anyway.
SAME: dict[str, Sequence[str]] = {}
for _row in _ROWS.splitlines():
    _name, _, _spellings = _row.partition(" ")
    SAME[_name] = _spellings.split(", ")
VERBS: Mapping[str, str] = {"start": "up", "version": "--version", "ls": "ps", "update": "upgrade"}
_ANSWERS = """\
add: `envgen recipe add NAME` adds a model; a package is a line of `pip` in envgen.yaml
attach: `envgen logs -f SERVICE`
benchmark: `envgen bench SERVICE`
check: `envgen doctor`
clean: `envgen prune`, or `envgen down --volumes`
cluster: `envgen nodes check SERVICE`
completion: the line for your shell is in `envgen --help`
compose: `envgen render`, then `docker compose -f compose/PROFILE.yaml ...`
container: `envgen ps`
convert: `envgen config`
cp: `docker cp`, with the container's name from `envgen ps`
create: `envgen up --no-wait SERVICE`
deploy: `envgen up SERVICE`
download: `envgen model pull`
events: `docker events`
fetch: `envgen model pull`
image: `envgen status`
images: `envgen status`
info: `envgen status`
inspect: `envgen config`, or `docker inspect` with the container's name from `envgen ps`
install: `envgen build`
kill: `envgen stop SERVICE`
list: `envgen ps`, `envgen recipe list`, `envgen cache list`
login: `docker login`
new: `envgen init DIR`
pause: `docker pause`, with the container's name from `envgen ps`
pip: a package is a line of `pip` in envgen.yaml
port: `envgen ps`
pull: `envgen model pull` for weights; a base image: `envgen lock --upgrade base`, then `envgen build`
push: `docker push IMAGE`, as `envgen status` names it
remove: `envgen down SERVICE`
rm: `envgen down SERVICE`
rmi: `docker image rm IMAGE`, or `envgen prune`
scale: each service has one container; write a second service
serve: `envgen up SERVICE`
setup: `envgen init DIR`
shell: `envgen exec SERVICE bash`, or `envgen run -- bash`
show: `envgen config`
sync: `envgen lock`, then `envgen build`
top: `docker top`, with the container's name from `envgen ps`
tune: `envgen sweep SERVICE`
uninstall: `envgen down --volumes`, then `envgen prune`
unpause: `docker unpause`, with the container's name from `envgen ps`
validate: `envgen config`, or `envgen render --check`
volume: `envgen cache list`
wait: `envgen up SERVICE`, which waits
watch: `envgen up dev`, where mounted files are edited in place
cache ls: `envgen cache list`
cache rm: `envgen cache clear MODULE`
model list: `envgen model check`
model ls: `envgen model check`
model rm: its folder below ~/.cache/huggingface/hub (docs/disk.md)
patch list: `envgen patch check`
patch ls: `envgen patch check`
export compose: `envgen render`
recipe ls: `envgen recipe list`
recipe show: `envgen recipe add NAME --dry-run`
results ls: `envgen results list`
-C: write `-f FOLDER` after the command
--project-directory: write `-f FOLDER` after the command
--project-name: write `name` in envgen.yaml
--env-file: `.env` beside envgen.yaml is read, for `secrets`
--context: `docker context use NAME`
--debug: write -v
up --force-recreate: `envgen up --recreate`
up --no-build: leave --build out; nothing is built without a question
up --no-recreate: is the default
up --pull: `envgen lock --upgrade base`, then `envgen up --build`
up --remove-orphans: `envgen prune`
up --scale: each service has one container; write a second service
up -V: `envgen down -v`, then `envgen up`
up --renew-anon-volumes: `envgen down -v`, then `envgen up`
up -t: `envgen up --wait-timeout SECONDS` limits the start; a stop waits 30 seconds
up --timeout: `envgen up --wait-timeout SECONDS` limits the start; a stop waits 30 seconds
build *: a profile has one image: `envgen build -p PROFILE`
build --pull: `envgen lock --upgrade base`, then `envgen build`
build --push: `envgen build`, then `docker push IMAGE`, as `envgen status` names it
build --progress: `envgen build -v`
build -t: write `image` in the profile
build --tag: write `image` in the profile
build --build-arg: write it below `build` or `env` in the profile, or `--set KEY=VALUE`
config --services: `envgen config --json`
config --images: `envgen status --json`
config --format: `envgen config --json`
config --quiet: `envgen config > /dev/null`
config -q: `envgen config > /dev/null`
ps -q: `envgen ps --json`
ps --quiet: `envgen ps --json`
ps --services: `envgen ps --json`
ps --format: `envgen ps --json`
stop -t: Docker waits 30 seconds; `docker stop -t SECONDS CONTAINER` takes another time
stop --timeout: Docker waits 30 seconds; `docker stop -t SECONDS CONTAINER` takes another time
restart -t: Docker waits 30 seconds; `docker restart -t SECONDS CONTAINER` takes another time
restart --timeout: Docker waits 30 seconds; `envgen restart --wait-timeout SECONDS` limits the start
down -t: Docker waits 30 seconds; `docker stop -t SECONDS CONTAINER` first
down --timeout: Docker waits 30 seconds; `docker stop -t SECONDS CONTAINER` first
down --rmi: `envgen down`, then `docker image rm IMAGE`
run --name: the name is in `envgen ps -a`
run -d: `envgen up SERVICE`
run --publish: `ports` of a service, and `envgen up SERVICE`
run --volume: `mounts` of a service
exec -d: `envgen run` in another terminal
exec --index: each service has one container
"""
ANSWERS: Mapping[str, str] = {
    typed: answer for typed, _, answer in (row.partition(": ") for row in _ANSWERS.splitlines())
}


def answered(error: click.UsageError) -> click.UsageError:
    """The error with the answer for what was typed, where the table has one."""
    command = error.ctx.info_name if error.ctx and error.ctx.parent else ""
    option = getattr(error, "option_name", "")
    if not option and "unexpected extra argument" in error.message:
        option = "*"
    answer = ANSWERS.get(f"{command} {option}".strip()) if option else None
    if answer is None:
        return error
    message = error.message if option == "*" else f"no option {option}"
    return click.UsageError(f"{message}: {answer}", error.ctx)


# What an argument or option of a command names.
_KINDS: Mapping[str, str] = {
    "profiles": r"\S+ (profile|extends)",
    "variants": r"\S+ variant",
    "modules": r"\S+ patterns|warm names",
    "recipes": "add name",
    "services": r"\S+ service|run argv|(up|down|stop|restart|logs) names",
}


def _names(kind: str, context: click.Context) -> Iterable[str]:
    from envgen.profile.load import load_project

    if kind == "recipes":
        from envgen.recipes.shipped import shipped

        return shipped()
    file = context.params.get("file")
    chosen = context.params.get("profile")
    if kind == "modules":
        from envgen.app.cluster.machines import head_of
        from envgen.app.session import Session
        from envgen.jitcache.service import JitCache

        cache = JitCache(head_of(Session(file, chosen).deployment()))
        inventory = cache.inventory()
        return [module.name for module in inventory.modules]
    loaded = load_project(file=file, profile=chosen)
    if kind == "profiles":
        return loaded.project.profiles
    profile = loaded.project.profiles[loaded.chosen]
    return profile.services if kind == "services" else profile.variants


def _offered(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """The names that begin so; none where the project can't be read: a shell shows no error."""
    with suppress(Exception), redirect_stderr(io.StringIO()):
        names = dict.fromkeys(_names(kind, context))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return []


def prepare(command: click.Command) -> None:
    """Let a command accept what it does anyway, refuse a value that is given twice, and complete
    names of the project.
    """
    taken = {spelling for param in command.params for spelling in param.opts}
    for spelling in SAME.get(command.name or "", ()):
        if spelling not in taken:
            same = click.Option([f"same{len(command.params)}", spelling], is_flag=True, hidden=True)
            same.expose_value = False
            command.params.append(same)
    for param in command.params:
        for kind, names in _KINDS.items():
            if re.fullmatch(names, f"{command.name} {param.name}"):
                param.shell_complete = partial(_offered, kind)  # type: ignore[method-assign]
    make = command.make_parser

    def make_parser(ctx: click.Context) -> Any:
        parser = make(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            options, rest, order = parse(args)
            once = (one for one in order if not (getattr(one, "is_flag", True) or one.multiple))
            for param, count in Counter(once).items():
                if count > 1:
                    raise click.UsageError(f"{param.opts[-1]} is there {count} times", ctx)
            return options, rest, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    command.make_parser = make_parser  # type: ignore[method-assign]
