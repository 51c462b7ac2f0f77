"""AGENTS.md for a profile: what an assistant who works in the project needs to know. Pure: no file
is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envgen.explain import filled, rules
from envgen.profile.caches import KNOWN
from envgen.profile.model import Profile, Source
from envgen.profile.service import Service

BEGIN = "<!-- Written by `envgen export agents`; what stands outside of this part is kept. -->"
END = "<!-- The end of what `envgen export agents` writes. -->"


def renewed(before: str, text: str) -> str:
    """A file with its generated part replaced by ``text``; ValueError where the file has no such
    part.
    """
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if before.strip() and not (begin and end):
        raise ValueError("no generated part")
    return head + text.rstrip("\n") + (tail or "\n")


def agents(profile: Profile, file: str, versions: Mapping[str, str]) -> str:
    """The generated part. ``file``: the project file; ``versions``: distribution -> locked version."""
    parts = [
        BEGIN,
        f"## The environment: profile {profile.name}",
        "",
        f"The file `{file}` describes everything here; envgen builds and runs it with Docker. This part is written by"
        f" `envgen export agents {profile.chosen} -o AGENTS.md`: run that again after a change of `{file}`.",
        "",
        *_stack(profile, versions),
        "",
        *_mounts(profile),
        "",
        *_commands(profile),
        "",
        *_caches(profile),
        "",
        *_flags(profile),
        "",
        *_untouched(profile, file),
        END,
        "",
    ]
    return "\n".join(parts)


def _stack(profile: Profile, versions: Mapping[str, str]) -> Iterator[str]:
    yield "### The stack"
    yield ""
    yield f"- Image `{profile.image_name}` on `{profile.base.image}`, {profile.mode.value}."
    if profile.cuda.arch_list:
        yield f"- GPU code is compiled for `{profile.cuda.arch_list}`. A kernel without it does not run there."
    for name, source in profile.sources.items():
        version = (
            f", locked {versions[source.distribution]}" if versions.get(source.distribution) else ""
        )
        yield f"- `{name}` (imported as `{source.package}`): {_origin(source)}{version}."
    for name, service in profile.services.items():
        yield f"- Service `{name}`: {_service(service)}."


def _origin(source: Source) -> str:
    origin = source.origin
    if origin.kind == "git":
        return f"built from `{origin.git}` at `{origin.git_ref}`"
    if origin.kind == "checkout":
        compiled = (
            f"; what is compiled comes from the wheel `{source.binaries}`"
            if source.binaries
            else ""
        )
        return f"the checkout `{origin.checkout}` of this machine, mounted{compiled}"
    return f"{origin.kind} `{getattr(origin, origin.kind)}`"


def _service(service: Service) -> str:
    model = f", model `{service.model.repo}`" if service.model else ""
    ports = f", ports {', '.join(f'`{port}`' for port in service.ports)}" if service.ports else ""
    return f"`{' '.join(service.command[:2])}`{model}{ports}"


def _mounts(profile: Profile) -> Iterator[str]:
    yield "### Where code is mounted"
    yield ""
    for name, source in profile.mounted_sources.items():
        yield f"- `{source.origin.checkout}` is `{source.mount}` in containers (`{name}`)."
    if not profile.mounted_sources:
        yield "Nothing: all code is in the image. A change needs `envgen build`."
        return
    yield "- An edit of Python counts for the next process: `envgen restart SERVICE`, or a new `envgen run`."
    yield "- After an edit of a kernel, compile it again (`envgen cache warm`); `envgen doctor` says what is stale."


def _commands(profile: Profile) -> Iterator[str]:
    names, chosen = list(profile.services), profile.chosen
    service = next(
        iter([name for name in names if profile.services[name].serves] + names), "SERVICE"
    )
    rows = {
        "what runs, and what is out of date": f"envgen status {chosen}",
        "check everything, and which file is imported": f"envgen doctor {chosen}",
        "build or update the image": f"envgen build {chosen}",
        "start, and wait until it answers": f"envgen up {service} {chosen}",
        "why it failed": f"envgen explain {service} {chosen}",
        "its log": f"envgen logs {chosen} {service}",
        "a command in a running container": f"envgen exec {chosen} {service} -- python3 -c 'import torch'",
        "a command in a new one": f"envgen run {chosen} {service} python3 -m pytest",
        "whether its answers are those of the last time": f"envgen answers {service} --against latest {chosen}",
        "how fast it is": f"envgen bench {service} {chosen}",
        "what a start on this GPU will choose": f"envgen predict {service} {chosen}",
        "stop": f"envgen down {chosen}",
    }
    yield "### Commands of the day"
    yield ""
    yield "| to see or do | command |"
    yield "| --- | --- |"
    yield from (f"| {what} | `{command}` |" for what, command in rows.items())
    yield ""
    yield "Each takes `--help`; those that show something take `--json`. A failure ends with another exit code than 0."


def _caches(profile: Profile) -> Iterator[str]:
    yield "### Caches"
    yield ""
    yield "| cache | in containers | is on | holds |"
    yield "| --- | --- | --- | --- |"
    for name, cache in profile.caches.items():
        known = KNOWN.get(name)
        holds = f"compiled by {known.compiles}" if known and known.compiles else "downloads"
        yield f"| `{name}` | `{cache.path}` | {f'`{cache.host}`' if cache.host else 'a volume'} | {holds} |"
    yield ""
    yield "Compiled code can be stale after an edit or an update: `envgen cache list` judges it, `envgen cache why`"
    yield "says why, and `envgen cache clear NAME` removes it. What is cleared is compiled again: minutes to hours."


def _flags(profile: Profile) -> Iterator[str]:
    yield "### Red flags in logs"
    yield ""
    for name, service in profile.services.items():
        ready = service.ready
        for what, pattern in (ready.expect if ready else {}).items():
            yield f"- The log of `{name}` must match `{pattern}` ({what}), else other code runs than was chosen."
        for what, pattern in (ready.forbid if ready else {}).items():
            yield f"- The log of `{name}` must not match `{pattern}` ({what})."
    yield "- A failure: `envgen explain` names cause and fix. The first exception decides, not the last."
    yield "- These fail nothing; `envgen up`, `status` and `doctor` tell them:"
    yield ""
    yield "| the log has | it means | do |"
    yield "| --- | --- | --- |"
    for rule in rules():
        if rule.notice and "serve" in rule.kinds:
            cells = (f"`{rule.patterns[0].has.strip()}`", filled(rule.cause), filled(rule.cure))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _untouched(profile: Profile, file: str) -> Iterator[str]:
    yield "### What not to touch"
    yield ""
    rendered = f"`{profile.dockerfile}`, `{profile.compose_file}`, `docker/`"
    yield f"- {rendered}: rendered. Edit `{file}`, then `envgen render`."
    yield "- `envgen.lock`: only `envgen lock` writes it. `.envgen/`: logs, bundles and records; read them."
    if profile.secrets:
        names = ", ".join(f"`{name}`" for name in profile.secrets)
        yield f"- Secrets ({names}) are in `.env` or the shell: never print, copy or commit them."
    yield "- Containers, networks, volumes: by envgen's commands only, not `docker rm` or a prune. Volumes hold kernels"
    yield "  that took hours."
    yield "- A server that runs is somebody's: ask before `down`, `restart`, `up --recreate`, or a second model there."
    yield "- What holds memory back (`gpu-memory-utilization`, `memory.floor`, `needs_memory`): where GPU and machine"
    yield "  share memory, too much use of it freezes the machine."
