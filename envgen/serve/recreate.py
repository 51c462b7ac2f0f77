"""Would `up` replace a container that runs, and why? A running server is only replaced when the user asks for it.

Loading a large model takes minutes, so nothing that depends on the moment may cost a reload: variables that only the
first terminal had (HF_TOKEN) are taken from the running container. Whatever else differs is named, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgen.engine.client import Engine
from envgen.engine.compose import Compose
from envgen.engine.values import Container, read_json
from envgen.errors import EnvgenError, ExitCode, Problem, ServiceError
from envgen.profile.model import Profile
from envgen.redact import redact
from envgen.render.compose import PROXY
from envgen.text import short_id

CONFIG_HASH = "com.docker.compose.config-hash"


class RecreateRefused(EnvgenError):
    """The service runs with other settings; replacing it has to be asked for. Carries every difference."""

    exit_code = ExitCode.REFUSED

    def __init__(self, profile: Profile, service: str, differences: Sequence[str]) -> None:
        super().__init__(f"{service} is running with other settings")
        self.problems = (
            Problem(f"{service} is running, and starting it as the profile says now would replace it:"),
            *(Problem(difference) for difference in differences[:-1]),
            Problem(differences[-1], hint=f"envgen up {service} --profile {profile.name} --recreate"),
        )


def keep_moment(compose: Compose, profile: Profile, running: Container, shell: Mapping[str, str]) -> Compose:
    """``compose`` with the values of ``running`` for whatever this moment (``shell``: our variables) doesn't decide."""
    kept = {name: running.env[name] for name in _passed(profile) if running.env.get(name) and name not in shell}
    return replace(compose, env={**compose.env, **kept})


def settings_differ(
    compose: Compose, profile: Profile, found: Iterable[Container], shell: Mapping[str, str]
) -> dict[str, bool]:
    """Container id -> whether Compose would replace it for its settings. One that can't be compared is left out.

    Compose leaves a digest of a service's settings on its container; the image is not in it.
    """
    asked: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    answers = {}
    for one in found:
        kept = keep_moment(compose, profile, one, shell)
        question = tuple(sorted(kept.env.items()))
        if question not in asked:
            asked[question] = _digests(kept)
        if one.service in asked[question]:
            answers[one.id] = asked[question][one.service] != one.labels.get(CONFIG_HASH)
    return answers


def _digests(compose: Compose) -> Mapping[str, str]:
    done = compose.run("--profile", "*", "config", "--hash", "*", timeout=10, check=False)
    lines = (line.split() for line in done.stdout.decode(errors="replace").splitlines())
    return {} if done.code else {words[0]: words[1] for words in lines if len(words) == 2}


def missing_here(profile: Profile, running: Container, shell: Mapping[str, str]) -> tuple[str, ...]:
    """The profile's secrets that the running container has and this terminal lacks."""
    return tuple(name for name in profile.secrets if running.env.get(name) and name not in shell)


def differences(
    engine: Engine, compose: Compose, profile: Profile, service: str, running: Container
) -> tuple[str, ...]:
    """One line for each setting that makes Compose replace ``running``; empty when it would leave it alone.

    Compose itself decides (its dry run); the lines are ours. Raises ProcessError when Compose fails.
    """
    if not _would_recreate(compose, service):
        return ()
    wanted = _wanted(compose, service)
    found = tuple(_named(engine, profile, wanted, running))
    return found or ("settings of the Compose file that have no line of their own here",)


def _passed(profile: Profile) -> tuple[str, ...]:
    return (*profile.secrets, *(PROXY if profile.network.pass_proxy else ()))


def _would_recreate(compose: Compose, service: str) -> bool:
    done = compose.run("--dry-run", "up", "--detach", "--no-build", "--pull", "never", service)
    text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    return any(line.rstrip().endswith(" Recreate") for line in text.splitlines())


def _wanted(compose: Compose, service: str) -> Mapping[str, Any]:
    text = compose.run("config", "--format", "json", service).stdout.replace(b"$$", b"$")  # it doubles every one
    try:
        services = read_json(text)["services"]
        wanted = services[service]
    except (ValueError, KeyError, TypeError):
        raise ServiceError(f"docker compose config describes no service {service}") from None
    return wanted if isinstance(wanted, dict) else {}


def _named(engine: Engine, profile: Profile, wanted: Mapping[str, Any], running: Container) -> Iterator[str]:
    image = engine.image(profile.image_name)
    if image is not None and image.id != running.image_id:
        yield f"image: {short_id(running.image_id)} is now {short_id(image.id)}"
    details = engine.inspect(running.id) or {}
    config = details.get("Config") or {}
    command = wanted.get("command")
    if isinstance(command, list) and command != (config.get("Cmd") or []):
        yield from _words(list(config.get("Cmd") or []), command)
    user = str(wanted.get("user") or "")
    if user != running.user and (user or ":" in running.user):  # without a user of its own it has the image's
        yield f"user: {running.user or 'root'} is now {user or 'root'}"
    yield from _environment(engine, profile, wanted.get("environment") or {}, running)
    yield from _mounts(wanted.get("volumes") or [], running)
    yield from _ports(wanted.get("ports") or [], running)


def _words(old: list[str], new: list[str]) -> Iterator[str]:
    gone, added = [word for word in old if word not in new], [word for word in new if word not in old]
    shown = [*(f"-{redact(word)}" for word in gone), *(f"+{redact(word)}" for word in added)]
    yield f"command: {' '.join(shown) or 'the same words in another order'}"


def _environment(engine: Engine, profile: Profile, wanted: Mapping[str, Any], running: Container) -> Iterator[str]:
    base = engine.image(running.image_id)
    inherited = base.env if base else {}
    hidden = set(_passed(profile))
    for name in sorted(wanted):
        value = wanted[name]
        if value is None:  # passed on where the terminal has it, and it has not
            continue
        old = running.env.get(name)
        if old == str(value):
            continue
        if name in hidden:
            yield f"environment: {name} has another value"
        elif old is None:
            yield f"environment: {name}={redact(str(value))} is new"
        else:
            yield f"environment: {name}={redact(old)} is now {redact(str(value))}"
    for name in sorted(set(running.env) - set(wanted)):
        if inherited.get(name) != running.env[name]:
            yield f"environment: {name} is no longer set"


def _mounts(wanted: Sequence[Any], running: Container) -> Iterator[str]:
    old = {mount.target: mount.source for mount in running.mounts}
    new = {
        str(one["target"]): str(one.get("source", "")) for one in wanted if isinstance(one, dict) and "target" in one
    }
    moved: list[str] = []
    for target in sorted(old.keys() | new.keys()):
        if target not in new:
            yield f"mount: {target} is no longer mounted"
        elif target not in old:
            yield f"mount: {target} is new"
        elif new[target].startswith("/") and old[target] != new[target]:
            if any(target.startswith(f"{other}/") for other in moved):  # what is mounted in it has gone with it
                continue
            moved.append(target)
            yield f"mount: {target} is {old[target]}, and is now {new[target]}"


def _ports(wanted: Sequence[Any], running: Container) -> Iterator[str]:
    old = sorted({f"{port.host}:{port.container}" for port in running.ports})
    new = sorted({f"{one.get('published')}:{one.get('target')}" for one in wanted if isinstance(one, dict)})
    if old != new:
        yield f"ports: {', '.join(old) or 'none'}, now {', '.join(new) or 'none'}"
